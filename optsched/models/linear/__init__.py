"""LinearModel: the one array language that every model becomes and every solver reads."""

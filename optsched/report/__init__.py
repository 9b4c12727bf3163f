"""Tables, plots and the HTML page: what a person looks at."""

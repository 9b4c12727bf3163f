"""The best schedule in hindsight: stages around one interval, and where its gap comes from."""

"""The only room with SQL: every statement that Foreman sends to Postgres is written here."""

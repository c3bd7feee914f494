"""The bytes that jobs leave behind, behind one small interface: PostgreSQL, a folder, or a bucket."""

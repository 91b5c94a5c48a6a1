"""What failed programs have written, with the real libraries, and what is said of it."""

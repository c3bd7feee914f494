"""What moves by itself: a Loop that runs again and again, a Batcher that gathers, and Parts started in order."""

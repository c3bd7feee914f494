"""What moves by itself: a Loop that runs again and again, a Batcher that gathers, Parts in their order."""

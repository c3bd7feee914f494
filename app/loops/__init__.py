"""The two shapes of what moves by itself: a Loop that runs again and again, a Batcher that gathers."""

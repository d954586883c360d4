"""`hanse.valued` wraps the strategy of any Flower app and says what each reply was worth."""

"""`hanse.valued`: around the strategy of any Flower app, what each reply was worth."""

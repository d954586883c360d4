"""Sources of samples and how they are split over clients."""

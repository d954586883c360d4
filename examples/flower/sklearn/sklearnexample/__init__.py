"""A logistic regression of scikit-learn and Flower."""

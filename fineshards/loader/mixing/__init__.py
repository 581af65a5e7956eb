"""Several datasets in one order: weights, plan and blending."""

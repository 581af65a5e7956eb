"""What users ask about a dataset, a recipe or a job to come."""

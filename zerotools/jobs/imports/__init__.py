"""What people bring from other launchers (DeepSpeed's JSON, accelerate's YAML), into a job file."""

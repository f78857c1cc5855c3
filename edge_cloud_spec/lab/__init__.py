"""What measures, simulates and trains: no part of what runs on a robot or beside it."""

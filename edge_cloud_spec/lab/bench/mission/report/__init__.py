"""What ``bench mission --out`` writes: a mission as pictures, and how long all of them took."""

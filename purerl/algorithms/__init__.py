"""Algorithms, one file per paper. `MAKERS` in `purerl.train` lists them; `.github/CONTRIBUTING.md` says how to add one."""

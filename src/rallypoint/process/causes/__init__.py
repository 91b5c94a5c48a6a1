"""Why a worker failed, read from what it wrote. Imported when one has failed, not before."""

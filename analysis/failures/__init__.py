"""Why a run ended: the signatures that logs contain, the verdict drawn from them, and what sacct reports."""

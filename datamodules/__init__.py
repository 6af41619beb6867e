"""Tasks and their LightningDataModules. Nothing in here knows of the model (`loopformer`)."""

"""Writing records: values checked, changes stored, references cascaded."""

"""Many runs as jobs: skipped if finished, over worker processes, one small file each, failures recorded one by one."""

"""
The demo: one worker is frozen beyond its lease while another writes; then it wakes and writes as well.

`director` plays the acts with real processes, `worker` is such a process, `stage` starts and freezes them,
`claims` checks what the database says afterwards, `timeline` prints.
"""

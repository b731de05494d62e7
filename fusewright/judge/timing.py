"""placeholder while the slice comes up"""
def participants(request): return ()
def measure(session, timers, slots): return None

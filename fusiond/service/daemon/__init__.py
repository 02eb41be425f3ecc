"""The daemon: `serve` claims jobs from the store and tunes them, one worker thread a device, and answers on a
Unix socket.

config   what configs/fusiond.yaml says            lock      one daemon a store, and where it listens
socket   the socket, which only its user can open  app       HTTP + JSON
stream   progress to whoever watches               worker    the loop that claims and runs jobs
http     the server, which accepts connections     limits    what one connection may cost
logs     one message, one line
notify   what systemd is told
service  puts them together; signals
"""

package cm

// Params returns the parameters of Listen, with defaults filled in.
func (l *Listener) Params() ListenParams { return l.params }

// HalfOpen returns the number of handshakes in progress, which Backlog limits.
func (l *Listener) HalfOpen() int { return l.halfOpen.Taken() }

// CAGUID returns the GUID that identifies the device to peers.
func (m *Manager) CAGUID() uint64 { return m.config.CAGUID }

// Entries are the numbers of objects that a manager holds.
type Entries struct {
	Listeners   int
	Connections int // in all states, including time-wait
	HalfOpen    int // handshakes and SIDR requests of peers
	Resolutions int
	Timers      int // objects that wait for a deadline; established connections have none
	Events      int // not taken yet
}

// Entries returns the numbers of objects that the manager holds.
func (m *Manager) Entries() Entries {
	return Entries{
		Listeners: len(m.listeners), Connections: len(m.conns), HalfOpen: m.halfOpen.Taken(),
		Resolutions: len(m.resolutions), Timers: len(m.timers), Events: m.events.Len(),
	}
}

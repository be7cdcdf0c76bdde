package verbs

// Path is the way that the packets of a queue pair take: QPCounters.Path.
type Path int

// The paths.
const (
	PathUnknown      Path = iota // the queue pair is not connected, or the device does not say
	PathNetwork                  // by a network, or the system's substitute for one
	PathSharedMemory             // through memory shared with a process of this machine
	PathLoopback                 // in memory: the peer is a queue pair of this device, or the same one
)

var pathNames = []string{"unknown", "network", "shared memory", "loopback"}

// String names the path.
func (p Path) String() string { return name(pathNames, "path", p) }

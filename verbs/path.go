package verbs

// PathQP is a queue pair that reports the path of its packets. The queue pairs of the software
// device implement it.
type PathQP interface {
	// Path is the present path. It can change at any time; a queue pair that is not connected
	// has PathUnknown.
	Path() Path
}

// Path is the way that the packets of a queue pair take.
type Path int

// The paths.
const (
	PathUnknown      Path = iota // the device does not say
	PathNetwork                  // by a network, or the system's substitute for one
	PathSharedMemory             // through memory shared with a process of this machine
	PathLoopback                 // in memory: the peer is a queue pair of this device, or the same one
)

var pathNames = []string{"unknown", "network", "shared memory", "loopback"}

// String names the path.
func (p Path) String() string { return name(pathNames, "path", p) }

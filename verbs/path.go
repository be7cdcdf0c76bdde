package verbs

// PathQP is a queue pair that says by which path its packets go. Those of the software device
// are.
type PathQP interface {
	// Path is the present one. It can change at any time; PathUnknown is that of a queue
	// pair that is not connected.
	Path() Path
}

// Path is by which way the packets of a queue pair go.
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

package capture_test

import (
	"fmt"
	"os"

	"github.com/verbena-rdma/verbena/soft/capture"
)

// What is wrong with the connections in a file.
func ExampleAnalyse() {
	f, err := os.Open("testdata/broken.pcap")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = f.Close() }()
	report, err := capture.Analyse(f)
	for _, c := range report.Connections {
		fmt.Printf("%s to %v: %s\n", c.Service, c.Ends[1].Addr, c.Outcome)
		for _, d := range c.Sent {
			fmt.Println(d.Packets, "packets,", d.Repeats.Total(), "repeats,", d.LostBefore+d.LostAfter, "lost")
		}
	}
	if err != nil {
		fmt.Println(err) // the file is truncated or damaged; the report has what was read before
	}
	// Output:
	// RC to 127.0.0.2: rejected by 127.0.0.2: invalid service ID
	// 0 packets, 0 repeats, 0 lost
	// 0 packets, 0 repeats, 0 lost
	// RC to 127.0.0.2: disconnected by 127.0.0.1
	// 73 packets, 40 repeats, 7 lost
	// 26 packets, 0 repeats, 0 lost
	// RC to 127.0.0.2: refused by 127.0.0.2: NAK, remote access error
	// 1 packets, 0 repeats, 0 lost
	// 1 packets, 0 repeats, 0 lost
}

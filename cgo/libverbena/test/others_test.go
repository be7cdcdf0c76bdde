//go:build linux

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// byLID is why programs cannot work that know their peers by local identifiers of InfiniBand.
const byLID = "addresses its peer by LID, which RoCE does not have"

// qperf are the tests of qperf, of which those for RC can address their peers by connection
// managers.
func qperf() (rows []row) {
	add := func(test, options, prints, cannot string) {
		rows = append(rows, row{program: "qperf", server: "qperf -lp PORT", stays: true, prints: prints, cannot: cannot,
			client: "qperf -lp PORT " + options + "-t 1 HOST " + test})
	}
	for _, test := range []string{
		"rc_bw", "rc_bi_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_rdma_write_lat",
		"rc_rdma_write_poll_lat", "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add",
	} {
		add(test, "-cm 1 ", "=", "")
	}
	// The server's message may end the client before it prints its own.
	const noGRH = "RoCE needs a GRH"
	add("rc_lat", "", noGRH, byLID)
	for _, test := range []string{"uc_bw", "uc_bi_bw", "uc_lat", "uc_rdma_write_bw", "uc_rdma_write_lat", "uc_rdma_write_poll_lat"} {
		add(test, "", noGRH, byLID)
	}
	for _, test := range []string{"ud_bw", "ud_bi_bw", "ud_lat"} {
		add(test, "", noGRH, byLID)
	}
	return rows
}

// fio are jobs of fio's engine for RDMA. They are threads, since processes of jobs outlive a fio
// that is killed. The server has receives for all messages, since the client asks for no retries.
func fio() (rows []row) {
	for _, verb := range []string{"write", "read", "send"} {
		for _, depth := range []string{"", " --iodepth=8 --iodepth_batch_complete=1"} {
			rows = append(rows, row{
				program: "fio", retries: true, prints: "err= 0",
				server: "fio --thread --name=server --ioengine=rdma --port=PORT --bs=64k --size=4m --rw=read --iodepth=64",
				client: "fio --thread --name=client --ioengine=rdma --hostname=HOST --port=PORT --bs=64k --size=4m --rw=write --verb=" + verb + depth,
			})
		}
	}
	return rows
}

// libfabric is libfabric's endpoint for connections over verbs, and ofi_rxm, which uses it. They do
// not use loopback interfaces. The endpoints for datagrams, and ofi_rxd, which uses them, address
// their peers by LID: they cannot work on RoCE, and wait for ever.
func libfabric() (rows []row) {
	for _, provider := range []string{"verbs -e msg", "verbs;ofi_rxm -e rdm"} {
		notRxe := ""
		if strings.Contains(provider, "ofi_rxm") {
			notRxe = "fails with rxe at both ends (fi_enable: Invalid argument)"
		}
		for _, options := range []string{"", " -c -I 100"} {
			command := "fi_pingpong -p " + provider + options
			rows = append(rows, row{
				program: "fi_pingpong", server: command + " -B PORT", client: command + " -P PORT HOST", prints: "1m ", apart: true,
				notRxe: notRxe,
			})
		}
	}
	return rows
}

// openMPI starts programs of Open MPI, which use UCX.
const openMPI = "mpirun --allow-run-as-root --oversubscribe --mca pml ucx --mca btl ^openib,vader,tcp"

// ucxDevice makes UCX use the device only.
var ucxDevice = []string{"UCX_TLS=rc_verbs,ud_verbs,self", "UCX_NET_DEVICES=DEV:1"}

// mpi are ping-pongs of MPI over UCX, between two processes of one mpirun.
func mpi(t *testing.T) (rows []row) {
	folder := t.TempDir()
	if _, err := exec.LookPath("mpicc"); err == nil && !testing.Short() {
		out, err := exec.Command("mpicc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(folder, "mpi_pingpong"), "testdata/mpi.c").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, transports := range []string{"rc_verbs,ud_verbs,self", "ud_verbs,self"} {
		rows = append(rows, row{
			program: "mpicc", prints: "all sizes: ok", local: true, ranks: true,
			client: openMPI + " -np 2 -x UCX_TLS=" + transports + " mpi_pingpong",
			env:    []string{"UCX_NET_DEVICES=DEV:1", "PATH=" + folder + ":" + os.Getenv("PATH")},
		})
	}
	return rows
}

// iser are programs of libiscsi, with tgtd as a target of iSER. It blocks signals after its first
// call of verbs, and takes them by signalfd. The clients are repeated, since they give up if a reply
// takes a second.
func iser(t *testing.T) (rows []row) {
	script, err := filepath.Abs("testdata/iser-target.sh")
	require.NoError(t, err)
	add := func(command, prints string) {
		rows = append(rows, row{
			program: "tgtd iscsi-inq", server: "sh " + script + " HOST PORT", stays: true, retries: true, local: true, prints: prints,
			client: command + " -i iqn.2026-11.org.example:client iser://HOST:3260/iqn.2026-11.org.example:disk/1",
		})
	}
	add("iscsi-inq", "Vendor:IET")
	add("iscsi-readcapacity16", "Total size:67108864")
	for _, test := range []string{"Read10.Simple", "Write10.Simple", "Read16", "Write16", "CompareAndWrite", "OrWrite"} { // Async crashes in libiscsi
		add("iscsi-test-cu -d -t SCSI."+test, "passed")
	}
	add("iscsi-perf -t 1", "finished.")
	return rows
}

const oneInterface = "one namespace"

// networkPlaces are two processes at one interface, as on a host, and two namespaces.
func networkPlaces(t *testing.T) []*place {
	hosts := netns.Hosts(t, 2, 1500)
	at := func(n netns.Host) end {
		return end{prefix: n.Run(), device: "soft_" + netns.Link, devices: "soft-" + netns.Link}
	}
	a, b, addr := at(hosts[0]), at(hosts[1]), hosts[0].V4.String()
	return []*place{
		{name: oneInterface, server: a, client: a, host: addr},
		{name: "namespaces", server: a, client: b, host: addr},
	}
}

// Package matrix runs the operations of the workload program in every combination of devices,
// size, address family, path MTU and list of buffers, together with the kernel's rxe (package
// rig), and makes tables of the results. A selection runs on the software device of any
// machine.
package matrix

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/internal/pair"
)

// Ends are the devices of requester and responder.
type Ends struct{ Requester, Responder string }

// The devices of the rig's two hosts, on both ends of the cable.
const (
	rxe  = "rxe"
	soft = "soft"
)

// String names the ends as in the table.
func (e Ends) String() string { return e.Requester + " × " + e.Responder }

// Case is one combination, run as a pair of programs.
type Case struct {
	Pair   pair.Pair
	Ends   Ends
	Size   int // bytes
	Family int // 4 or 6
	MTU    int
	SGE    int
}

// The possible values. 16 MiB is twice the greatest message of rxe. Operations on values have
// only one size, and no list.
var (
	ends     = []Ends{{rxe, rxe}, {soft, rxe}, {rxe, soft}, {soft, soft}}
	sizes    = []int{0, 1, 255, 256, 1023, 4096, 65537, 16 << 20}
	families = []int{4, 6}
	mtus     = []int{256, 512, 1024, 2048, 4096}
	sges     = []int{1, 3}
)

const valueSize = 8

// All returns the cases: every operation with all devices, sizes, families and path
// MTUs. Lists of one buffer and of several alternate from one path MTU to the next,
// and from one family to the other.
func All() (all []Case) {
	for _, p := range pair.Workloads() {
		sizes, sges := sizes, sges
		if p.Values {
			sizes, sges = []int{valueSize}, []int{1}
		}
		for _, e := range ends {
			for i, size := range sizes {
				for j, family := range families {
					for k, mtu := range mtus {
						all = append(all, Case{p, e, size, family, mtu, sges[(i+j+k)%len(sges)]})
					}
				}
			}
		}
	}
	return all
}

// Covering returns a selection of cases. Every combination of n values, 2 or 3, of n
// dimensions that occurs in all also occurs in the selection.
func Covering(n int, all []Case) (chosen []Case) {
	meetings := make([][]string, len(all))
	missing := map[string]bool{}
	for i, c := range all {
		meetings[i] = c.valueCombinations(n)
		for _, m := range meetings[i] {
			missing[m] = true
		}
	}
	for len(missing) > 0 {
		best, most := 0, 0
		for i := range all {
			found := 0
			for _, m := range meetings[i] {
				if missing[m] {
					found++
				}
			}
			if found > most {
				best, most = i, found
			}
		}
		for _, m := range meetings[best] {
			delete(missing, m)
		}
		chosen = append(chosen, all[best])
	}
	return chosen
}

// valueCombinations returns all combinations of n values of the case, 2 or 3.
func (c Case) valueCombinations(n int) (list []string) {
	values := []string{c.Pair.Name, c.Ends.String(), "size " + strconv.Itoa(c.Size),
		"family " + strconv.Itoa(c.Family), "MTU " + strconv.Itoa(c.MTU), "SGE " + strconv.Itoa(c.SGE)}
	for i, x := range values {
		for j, y := range values[:i] {
			if n == 2 {
				list = append(list, x+", "+y)
				continue
			}
			for _, z := range values[:j] {
				list = append(list, x+", "+y+", "+z)
			}
		}
	}
	return list
}

// String names the case in the line of its result.
func (c Case) String() string {
	return fmt.Sprintf("%s %s %s %d IPv%d %d %d", c.Pair.Name, c.Ends.Requester, c.Ends.Responder, c.Size, c.Family, c.MTU, c.SGE)
}

// A Result is the result of a case.
type Result struct {
	Case
	OK      bool
	Seconds float64
}

// resultMark begins the line of a result.
const resultMark = "RESULT "

// String is the line of a result.
func (r Result) String() string {
	return fmt.Sprintf("%s%v: %v %.2f", resultMark, r.Case, r.OK, r.Seconds)
}

// ParseResults finds the results in other output.
func ParseResults(output string) (results []Result, err error) {
	byName := map[string]Case{}
	for _, c := range All() {
		byName[c.String()] = c
	}
	for line := range strings.Lines(output) {
		_, line, found := strings.Cut(line, resultMark)
		if !found {
			continue
		}
		name, rest, _ := strings.Cut(line, ": ")
		r := Result{Case: byName[name]}
		if _, err := fmt.Sscan(rest, &r.OK, &r.Seconds); err != nil || r.Pair.Name == "" {
			return nil, fmt.Errorf("%q is not a result line", line)
		}
		results = append(results, r)
	}
	return results, nil
}

package rules_test

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/verbs"
)

// A driver checks a request before it gives it to the device.
func ExampleCheckRequest() {
	fmt.Println(rules.CheckRequest(verbs.RC, verbs.OpRead, verbs.FlagSignaled))
	fmt.Println(rules.CheckRequest(verbs.UC, verbs.OpRead, verbs.FlagSignaled))
	// Output:
	// <nil>
	// transport service UC has no such operation: invalid argument
}

// The transition of a queue pair of unreliable datagrams to Initialized needs a Q_Key.
func ExampleCheckTransition() {
	attr := verbs.QPAttr{State: verbs.QPInitialized, Port: 1}
	mask := verbs.QPAttrState | verbs.QPAttrPort | verbs.QPAttrPKeyIndex
	fmt.Println(rules.CheckTransition(verbs.UD, verbs.QPReset, &attr, mask, rules.Limits{Ports: 1}))
	// Output: attribute QKey is missing
}

package ibverbs_test

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// Programs open devices with package device. A name that is no adapter's is an error, also
// where the program was built without libibverbs.
func ExampleDriver() {
	_, err := ibverbs.Driver{}.Open("nothing0")
	fmt.Println(errors.Is(err, verbs.ErrNoDevice))
	// Output: true
}

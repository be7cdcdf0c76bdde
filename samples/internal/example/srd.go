package example

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/verbena-rdma/verbena/verbs"
)

// MaxMemory bounds the size of its memory that the other program may claim, in bytes.
const MaxMemory = 1 << 26

// CheckSRD fails for a device that has no SRD queue pairs, or none that can write.
func CheckSRD(dev verbs.Device) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	if !attr.Transports.Has(verbs.SRD) || !attr.SRD.Write {
		return fmt.Errorf("device %s does not support RDMA writes on SRD queue pairs: use an Amazon EFA adapter or a software device", dev.Name())
	}
	return nil
}

// BringUpSRD takes a queue pair of SRD through Init and RTR to RTS (efadv_create_qp_ex(3)),
// and returns the metadata for the other program.
func BringUpSRD(dev verbs.Device, qp verbs.QP, gidIndex *int) (m Metadata, gid verbs.GIDEntry, err error) {
	if gid, err = FirstGID(dev, gidIndex); err != nil {
		return m, gid, err
	}
	m = Metadata{GID: gid.GID, UDPPort: gid.UDPPort, QPN: qp.Num(), QKey: rand.Uint32N(1 << 31), PSN: PSN()}
	for _, step := range []struct {
		state verbs.QPState
		mask  verbs.QPAttrMask
	}{
		{verbs.QPInitialized, verbs.SRDToInit}, {verbs.QPReadyToReceive, verbs.SRDToRTR}, {verbs.QPReadyToSend, verbs.SRDToRTS},
	} {
		if err := qp.Modify(verbs.QPAttr{State: step.state, Port: 1, QKey: m.QKey, SQPSN: m.PSN}, step.mask); err != nil {
			return m, gid, err
		}
	}
	return m, gid, nil
}

// WaitExtended is Wait for a queue whose completions name the sender.
func WaitExtended(ctx context.Context, cq verbs.CQ) (verbs.WC, verbs.WCExtra, error) {
	var wc [1]verbs.WC
	var extra [1]verbs.WCExtra
	err := wait(ctx, &wc[0], func() (int, error) { return cq.(verbs.ExtendedCQ).PollExtended(wc[:], extra[:]) })
	return wc[0], extra[0], err
}

// Number returns the number of an address handle. Completions name the sender by it.
func Number(ah verbs.AH) uint16 {
	if n, ok := ah.(verbs.NumberedAH); ok {
		return n.Number()
	}
	return verbs.NoAH
}

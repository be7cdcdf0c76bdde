package pingpong

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/verbs"
)

// OpenDevice takes steps 1 to 3: it gets the list of devices, opens the device that was asked
// for or else the first, and checks its capabilities.
func (o *Options) OpenDevice() (verbs.Device, error) {
	name := o.Device
	if name == "" {
		list, err := device.List()
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			name = list[0].Name
			o.say("using device %s, the first one found", name)
		}
	}
	dev, err := device.Open(name)
	if err != nil {
		return nil, err
	}
	if err := o.checkDevice(dev); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}

// checkDevice fails for options that the device or its port does not support.
func (o *Options) checkDevice(dev verbs.Device) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	port, err := dev.QueryPort(o.Port)
	if err != nil {
		return err
	}
	switch service := o.program.Service; {
	case !attr.Transports.Has(service):
		err = fmt.Errorf("device %s does not support the transport service %v", dev.Name(), service)
	case o.RxDepth > attr.MaxQPWR:
		err = fmt.Errorf("device %s supports at most %d receives, -r asks for %d", dev.Name(), attr.MaxQPWR, o.RxDepth)
	case service == verbs.UD && o.Size > int(port.ActiveMTU):
		err = fmt.Errorf("a datagram holds at most the port's MTU, %d bytes, -s asks for %d", port.ActiveMTU, o.Size)
	case service != verbs.UD && o.MTU > port.ActiveMTU:
		err = fmt.Errorf("the port's MTU is %d, -m must not exceed it", port.ActiveMTU)
	case uint64(o.Size) > uint64(attr.MaxMessage):
		err = fmt.Errorf("device %s sends messages of at most %d bytes, -s asks for %d", dev.Name(), attr.MaxMessage, o.Size)
	}
	return err
}

// rocePort is the only UDP port that the handshake supports.
const rocePort = 4791

// chooseGID returns the entry of the GID table that was asked for. Otherwise it returns one
// for RoCEv2: of the peer's family if that is known, else of IPv4 if there is one.
func (o *Options) chooseGID(table []verbs.GIDEntry, peer netip.Addr) (verbs.GIDEntry, error) {
	usable := func(e verbs.GIDEntry) bool { return e.UDPPort == 0 || e.UDPPort == rocePort || e.SharesPort }
	var found *verbs.GIDEntry
	for i := range table {
		e := &table[i]
		if o.GIDIndex >= 0 {
			if e.Index != o.GIDIndex {
				continue
			}
			if !usable(*e) {
				return *e, fmt.Errorf("GID index %d, %v, uses UDP port %d, but the handshake supports only port %d: use an address on which that port is free", e.Index, e.GID.Addr(), e.UDPPort, rocePort)
			}
			return *e, nil
		}
		if e.Type == verbs.GIDRoCEv2 && usable(*e) && (!peer.IsValid() || rank(e, peer) > 0) && (found == nil || rank(e, peer) > rank(found, peer)) {
			found = e
		}
	}
	if found == nil {
		return verbs.GIDEntry{}, fmt.Errorf("the GID table of port %d has no entry %s; device_info lists its entries", o.Port, o.wanted(peer))
	}
	return *found, nil
}

// rank returns how likely the address is to reach the peer: higher is better, 0 is never.
func rank(e *verbs.GIDEntry, peer netip.Addr) int {
	a := e.GID.Addr()
	switch {
	case peer.IsValid() && a.Is4() != peer.Is4():
		return 0
	case peer.IsValid() && a.IsLinkLocalUnicast() == peer.IsLinkLocalUnicast():
		return 4
	case a.Is4():
		return 3
	case !a.IsLinkLocalUnicast():
		return 2
	}
	return 1
}

func (o *Options) wanted(peer netip.Addr) string {
	switch {
	case o.GIDIndex >= 0:
		return fmt.Sprintf("with index %d", o.GIDIndex)
	case peer.IsValid():
		return fmt.Sprintf("for RoCEv2 on UDP port %d that reaches %v", rocePort, peer)
	}
	return fmt.Sprintf("for RoCEv2 on UDP port %d", rocePort)
}

package soft

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

const prefix = "soft-"

// prefixWithoutDash begins names with underscores in place of dashes. libverbena gives them to
// programs, some of which take a dash for the beginning of something else.
const prefixWithoutDash = "soft_"

// Driver finds and opens software devices by name; see the package comment for
// the names.
type Driver struct {
	// Log is where the devices log. The zero value is silent.
	Log zerolog.Logger
}

// Name implements [verbs.Driver].
func (Driver) Name() string { return "soft" }

// Devices implements [verbs.Driver]: one device for every network interface that
// is up and has an address.
func (Driver) Devices() ([]verbs.DeviceInfo, error) {
	list, err := interfaces()
	if err != nil {
		return nil, err
	}
	var infos []verbs.DeviceInfo
	for _, i := range list {
		infos = append(infos, verbs.DeviceInfo{Name: prefix + i.Name, Driver: "soft", GUID: i.guid(), Interface: i.Name})
	}
	return infos, nil
}

// Open implements [verbs.Driver].
func (v Driver) Open(name string) (verbs.Device, error) {
	cfg, capture, err := parseName(name)
	if err != nil {
		return nil, err
	}
	cfg.Log = v.Log
	if capture == "" {
		return opened(Open(cfg))
	}
	file := &captureFile{path: capture}
	cfg.Capture = file
	d, err := Open(cfg)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	d.capture = file
	return d, nil
}

// Check returns the error that Open would return for a name with a wrong option, or for an
// interface or address that this machine does not have. It opens nothing: a port that another
// program has, or a capture file that cannot be created, is no error here.
func (Driver) Check(name string) error {
	cfg, _, err := parseName(name)
	if err != nil {
		return err
	}
	if err := faults.Check(cfg.Faults); err != nil {
		return fmt.Errorf("open device %q: %w: %w", name, err, verbs.ErrInvalid)
	}
	_, err = cfg.find()
	return err
}

// parseName returns the configuration for a device name, and the name of its capture file.
func parseName(name string) (cfg Config, capture string, err error) {
	place, options, _ := strings.Cut(name, "?")
	place, ours := strings.CutPrefix(place, prefix)
	interfaceName := func(ifi string) string { return ifi }
	if !ours {
		place, ours = strings.CutPrefix(place, prefixWithoutDash)
		interfaceName = withDashes
	}
	if !ours || place == "" {
		return cfg, "", fmt.Errorf("open device %q: the name of a software device is %s followed by an interface or an address: %w", name, prefix, verbs.ErrNoDevice)
	}
	if cfg, capture, err = parseOptions(options); err != nil {
		return cfg, "", fmt.Errorf("open device %q: %w", name, err)
	}
	if addr, err := netip.ParseAddr(strings.Trim(place, "[]")); err == nil {
		cfg.Address = netip.AddrPortFrom(withZone(addr, interfaceName), 0)
	} else if addr, err := netip.ParseAddrPort(place); err == nil {
		cfg.Address = netip.AddrPortFrom(withZone(addr.Addr(), interfaceName), addr.Port())
	} else {
		cfg.Interface = interfaceName(place)
	}
	return cfg, capture, nil
}

func withZone(addr netip.Addr, interfaceName func(string) string) netip.Addr {
	if addr.Zone() == "" {
		return addr
	}
	return addr.WithZone(interfaceName(addr.Zone()))
}

// withDashes returns the name of the interface that has this one if its dashes are underscores. An
// interface of this very name goes first.
func withDashes(name string) string {
	list, err := net.Interfaces()
	if err != nil || slices.ContainsFunc(list, func(i net.Interface) bool { return i.Name == name }) {
		return name
	}
	for _, i := range list {
		if strings.ReplaceAll(i.Name, "-", "_") == name {
			return i.Name
		}
	}
	return name
}

// opened converts a nil *Device to a nil verbs.Device.
func opened(d *Device, err error) (verbs.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

func parseOptions(options string) (cfg Config, capture string, err error) {
	values, err := url.ParseQuery(options)
	if err != nil {
		return cfg, "", fmt.Errorf("options %q: %w: %w", options, err, verbs.ErrInvalid)
	}
	for key, list := range values {
		value := list[len(list)-1]
		switch key {
		case "loss":
			err = probability(value, &cfg.Faults.Loss)
		case "duplicate":
			err = probability(value, &cfg.Faults.Duplicate)
		case "reorder":
			err = probability(value, &cfg.Faults.Reorder)
		case "corrupt":
			err = probability(value, &cfg.Faults.Corrupt)
		case "mark":
			err = probability(value, &cfg.Faults.Mark)
		case "delay":
			if cfg.Faults.Delay, err = time.ParseDuration(value); err != nil {
				err = fmt.Errorf("%q is not a duration such as 5ms", value)
			}
		case "rate":
			if cfg.Faults.Rate, err = strconv.Atoi(value); err != nil || cfg.Faults.Rate < 1 {
				err = fmt.Errorf("%q is not a positive number of bytes per second", value)
			}
		case "seed":
			if cfg.Faults.Seed, err = strconv.ParseUint(value, 0, 64); err != nil {
				err = fmt.Errorf("%q is not a number from 0 to 2^64-1", value)
			}
		case "srd_seed":
			if cfg.SRDSeed, err = strconv.ParseUint(value, 0, 64); err != nil {
				err = fmt.Errorf("%q is not a number from 0 to 2^64-1", value)
			}
		case "capture":
			if capture = value; value == "" {
				err = fmt.Errorf("the file name is missing")
			}
		case "segmentation":
			err = onOff(value, &cfg.DisableSegmentation)
		case "coalescing":
			err = onOff(value, &cfg.DisableCoalescing)
		case "batch":
			err = onOff(value, &cfg.DisableBatch)
		case "congestion":
			off := !cfg.CongestionControl
			err = onOff(value, &off)
			cfg.CongestionControl = !off
		case "local":
			err = onOff(value, &cfg.DisableLocal)
		case "shards":
			if cfg.MaxShards, err = strconv.Atoi(value); err != nil || cfg.MaxShards < 1 {
				err = fmt.Errorf("%q is not a positive number", value)
			}
		case "spin":
			if cfg.Spin, err = spin(value); err != nil {
				err = fmt.Errorf("%q is neither off nor a duration such as 50us", value)
			}
		default:
			err = fmt.Errorf("unknown option; the options are loss, duplicate, reorder, corrupt, mark, delay, rate, seed, srd_seed, capture, segmentation, coalescing, batch, congestion, local, shards and spin")
		}
		if err != nil {
			return cfg, "", fmt.Errorf("option %q: %w: %w", key, err, verbs.ErrInvalid)
		}
	}
	return cfg, capture, nil
}

func probability(s string, p *float64) error {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v <= 1) {
		return fmt.Errorf("%q is not a probability from 0 to 1", s)
	}
	*p = v
	return nil
}

func spin(s string) (time.Duration, error) {
	if s == "off" {
		return -1, nil
	}
	d, err := time.ParseDuration(s)
	if err == nil && d <= 0 {
		err = verbs.ErrInvalid
	}
	return d, err
}

func onOff(s string, disable *bool) error {
	switch s {
	case "on":
		*disable = false
	case "off":
		*disable = true
	default:
		return fmt.Errorf("%q is neither on nor off", s)
	}
	return nil
}

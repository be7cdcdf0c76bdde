package preload

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// devicesVariable names the devices that the library opens, with spaces between. If it is not set,
// the library has every software device of the machine.
const devicesVariable = "VERBENA_DEVICES"

var errNoInterface = errors.New("this machine has no software device, since no network interface is up and has an address; bring one up, as in: ip link set lo up")

// deviceNames returns the devices for the program, with their options, from the flags or else from the
// environment. If neither names one, the program gets all devices; -faults needs names.
func (o *options) deviceNames() ([]string, error) {
	names, source := o.devices, "-d"
	if len(names) == 0 {
		names, source = strings.Fields(os.Getenv(devicesVariable)), devicesVariable
	}
	if len(names) == 0 && o.faults != "" {
		infos, err := soft.Driver{}.Devices()
		if err != nil {
			return nil, err
		}
		if len(infos) == 0 {
			return nil, errNoInterface
		}
		source = "-faults"
		for _, info := range infos {
			names = append(names, info.Name)
		}
	}
	seen := map[string]bool{}
	for i, name := range names {
		names[i] = withOptions(name, o.faults)
		if err := check(names[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		place, _, _ := strings.Cut(name, "?")
		place = strings.ReplaceAll(place, "-", "_") // as the program sees it
		if seen[place] {
			return nil, fmt.Errorf("%s: the device %s is named twice; a program would see two devices of one name", source, place)
		}
		seen[place] = true
	}
	if values, _ := url.ParseQuery(o.faults); len(names) > 1 && values.Has("capture") {
		return nil, errors.New("-faults gives every device the same capture file; each device needs its own: write -d 'soft-lo?capture=FILE' instead")
	}
	return names, nil
}

var space = regexp.MustCompile(`\s`)

// withOptions adds options to a device name. They take precedence over its own, since they come
// last. Spaces would separate devices, so they are escaped.
func withOptions(name, options string) string {
	place, own, has := strings.Cut(name, "?")
	switch {
	case options == "" && !has:
		return name
	case own == "":
		own = options
	case options != "":
		own += "&" + options
	}
	return place + "?" + space.ReplaceAllStringFunc(own, url.QueryEscape)
}

// check checks the name of a device with its options.
func check(name string) error {
	if place, _, _ := strings.Cut(name, "?"); space.MatchString(place) || place == "" {
		return fmt.Errorf("%q is not the name of a device; give each device a -d of its own, as in: -d soft-lo -d soft-eth0", name)
	}
	_, err := soft.Driver{}.Describe(name)
	if !errors.Is(err, verbs.ErrNoDevice) {
		return err
	}
	var available []string
	infos, _ := soft.Driver{}.Devices()
	if len(infos) == 0 {
		return fmt.Errorf("%w; %w", err, errNoInterface)
	}
	for _, info := range infos {
		available = append(available, info.Name)
	}
	return fmt.Errorf("%w; the software devices of this machine are: %s", err, strings.Join(available, ", "))
}

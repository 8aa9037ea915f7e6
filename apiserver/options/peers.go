package options

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	netutils "k8s.io/utils/net"
)

// PeerOptions are the address at which other servers of the control plane reach this
// one. It counts only if both fields are set; otherwise it is --advertise-address and
// --secure-port.
type PeerOptions struct{ IP, Port string }

// AddFlags adds the flags.
func (o *PeerOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.IP, "peer-advertise-ip", o.IP,
		"IP address by which other servers of the control plane reach this one, as its identity Lease tells them. Counts together with --peer-advertise-port. If not set, --advertise-address.")
	fs.StringVar(&o.Port, "peer-advertise-port", o.Port,
		"Port by which other servers of the control plane reach this one, as its identity Lease tells them. Counts together with --peer-advertise-ip. If not set, --secure-port.")
}

// Validate returns one error for each invalid flag.
func (o *PeerOptions) Validate() []error {
	var errs []error
	for _, given := range []struct{ flag, value string }{{"peer-advertise-ip", o.IP}, {"peer-advertise-port", o.Port}} {
		if given.value != "" && !utilfeature.DefaultFeatureGate.Enabled(features.UnknownVersionInteroperabilityProxy) {
			errs = append(errs, fmt.Errorf("--%s needs the feature gate %s", given.flag, features.UnknownVersionInteroperabilityProxy))
		}
	}
	if o.IP != "" && netutils.ParseIPSloppy(o.IP) == nil {
		errs = append(errs, fmt.Errorf("--peer-advertise-ip: %q is not an IP address", o.IP))
	}
	if port, err := strconv.ParseUint(o.Port, 10, 16); o.Port != "" && (err != nil || port == 0) {
		errs = append(errs, fmt.Errorf("--peer-advertise-port: %q is not a port", o.Port))
	}
	return errs
}

// Address returns the address for the identity Lease of this server, which listens on
// port.
func (o *PeerOptions) Address(advertise net.IP, port string) string {
	if o.IP != "" && o.Port != "" {
		return net.JoinHostPort(o.IP, o.Port)
	}
	return net.JoinHostPort(advertise.String(), port)
}

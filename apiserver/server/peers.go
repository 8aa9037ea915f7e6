package server

import (
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
	var errs invalid
	gate := features.UnknownVersionInteroperabilityProxy
	isOn := utilfeature.DefaultFeatureGate.Enabled(gate)
	errs.unless(o.IP == "" || isOn, "--peer-advertise-ip needs the feature gate %s", gate)
	errs.unless(o.Port == "" || isOn, "--peer-advertise-port needs the feature gate %s", gate)
	errs.unless(o.IP == "" || netutils.ParseIPSloppy(o.IP) != nil, "--peer-advertise-ip: %q is not an IP address", o.IP)
	port, err := strconv.ParseUint(o.Port, 10, 16)
	errs.unless(o.Port == "" || err == nil && port != 0, "--peer-advertise-port: %q is not a port", o.Port)
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

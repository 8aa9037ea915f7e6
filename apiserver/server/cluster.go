package server

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	netutils "k8s.io/utils/net"

	"byre/apiserver/registry"
)

// ClusterOptions are the settings that objects of the cluster depend on. The usage of each flag
// says what its field means.
type ClusterOptions struct {
	ServiceIPRanges string
	NodePortRange   utilnet.PortRange
	ServiceNodePort int
	// EndpointReconciler is reconcilers.LeaseEndpointReconcilerType or NoneEndpointReconcilerType.
	EndpointReconciler                string
	EventTTL                          time.Duration
	AllowPrivileged                   bool
	MaxConnectionBytesPerSec          int64
	ProxyCertFile, ProxyKeyFile       string
	RouteToEndpoints, RejectRedirects bool
	Kubelet                           *kubeletclient.KubeletClientConfig
	EgressSelectorFile                string
}

// NewClusterOptions returns the defaults.
func NewClusterOptions() ClusterOptions {
	return ClusterOptions{
		NodePortRange:      registry.DefaultNodePortRange(),
		EndpointReconciler: string(reconcilers.LeaseEndpointReconcilerType),
		EventTTL:           time.Hour,
		AllowPrivileged:    true, // network and storage plugins need it; kubeadm, k3s and kind set it
		// A server that is not on a node of the cluster cannot reach cluster IPs.
		RouteToEndpoints: true,
		RejectRedirects:  true,
		Kubelet:          registry.DefaultKubelet(),
	}
}

// AddFlags adds the flags.
func (o *ClusterOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ServiceIPRanges, "service-cluster-ip-range", o.ServiceIPRanges,
		"CIDR from which services get their cluster IPs, or two of different IP families, comma-separated. If not set, 10.0.0.0/24.")
	fs.Var(&o.NodePortRange, "service-node-port-range",
		"Ports from which services get their node ports, such as '30000-32767', both ends included.")
	fs.IntVar(&o.ServiceNodePort, "kubernetes-service-node-port", o.ServiceNodePort,
		"Node port of the service 'kubernetes' if this server makes it; with 0 it has a cluster IP only.")
	fs.StringVar(&o.EndpointReconciler, "endpoint-reconciler-type", o.EndpointReconciler,
		"How this server becomes an endpoint of the service 'kubernetes': 'lease', by an entry in the database that it renews, or 'none'.")
	fs.DurationVar(&o.EventTTL, "event-ttl", o.EventTTL,
		"How long events are kept.")
	fs.BoolVar(&o.AllowPrivileged, "allow-privileged", o.AllowPrivileged,
		"Allow privileged containers. Who may run them is for Pod Security admission to say.")
	fs.Int64Var(&o.MaxConnectionBytesPerSec, "max-connection-bytes-per-sec", o.MaxConnectionBytesPerSec,
		"Throttle each long-running connection of a user to this many bytes a second; 0 doesn't.")
	fs.StringVar(&o.ProxyCertFile, "proxy-client-cert-file", o.ProxyCertFile,
		"Client certificate by which this server shows itself to aggregated servers and webhooks. If not set, the server's own.")
	fs.StringVar(&o.ProxyKeyFile, "proxy-client-key-file", o.ProxyKeyFile,
		"Private key of --proxy-client-cert-file.")
	fs.BoolVar(&o.RouteToEndpoints, "enable-aggregator-routing", o.RouteToEndpoints,
		"Send requests to the endpoints of the service of an aggregated server or a webhook where there are any, rather than to its cluster IP.")
	fs.BoolVar(&o.RejectRedirects, "aggregator-reject-forwarding-redirect", o.RejectRedirects,
		"Answer redirects of aggregated servers by an error instead of passing them on to clients.")
	fs.StringVar(&o.EgressSelectorFile, "egress-selector-config-file", o.EgressSelectorFile,
		"File with an EgressSelectorConfiguration: the proxies through which this server connects to nodes, pods and services (cluster), and to webhooks by URL, issuers and trace collectors (controlplane). The database is always connected to directly.")
	o.addKubeletFlags(fs)
}

func (o *ClusterOptions) addKubeletFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Kubelet.PreferredAddressTypes, "kubelet-preferred-address-types", o.Kubelet.PreferredAddressTypes,
		"Types of node addresses to reach kubelets at, the preferred first.")
	fs.UintVar(&o.Kubelet.Port, "kubelet-port", o.Kubelet.Port,
		"Port of kubelets that don't say theirs in their node's status.")
	fs.UintVar(&o.Kubelet.ReadOnlyPort, "kubelet-read-only-port", o.Kubelet.ReadOnlyPort,
		"Read-only port of kubelets; nothing asks for it any more.")
	for _, name := range []string{"kubelet-port", "kubelet-read-only-port"} {
		// MarkDeprecated fails only for a flag that does not exist.
		_ = fs.MarkDeprecated(name, name+" is deprecated and will be removed.")
	}
	fs.DurationVar(&o.Kubelet.HTTPTimeout, "kubelet-timeout", o.Kubelet.HTTPTimeout,
		"Timeout of requests to kubelets.")
	fs.StringVar(&o.Kubelet.TLSClientConfig.CertFile, "kubelet-client-certificate", o.Kubelet.TLSClientConfig.CertFile,
		"Client certificate shown to kubelets. If not set, the server's own.")
	fs.StringVar(&o.Kubelet.TLSClientConfig.KeyFile, "kubelet-client-key", o.Kubelet.TLSClientConfig.KeyFile,
		"Private key of --kubelet-client-certificate.")
	fs.StringVar(&o.Kubelet.TLSClientConfig.CAFile, "kubelet-certificate-authority", o.Kubelet.TLSClientConfig.CAFile,
		"File with the CA that kubelets' serving certificates are checked against. If not set, they are not checked.")
}

// serviceNets parses ServiceIPRanges. secondary is zero if there is only one range.
func (o *ClusterOptions) serviceNets() (primary, secondary net.IPNet, err error) {
	if o.ServiceIPRanges == "" {
		return registry.DefaultClusterIPRange(), net.IPNet{}, nil
	}
	parts := strings.Split(o.ServiceIPRanges, ",")
	if len(parts) > 2 {
		return primary, secondary, errors.New("--service-cluster-ip-range must not have more than two CIDRs")
	}
	var nets []*net.IPNet
	for _, part := range parts {
		_, parsed, err := netutils.ParseCIDRSloppy(strings.TrimSpace(part))
		if err != nil {
			return primary, secondary, fmt.Errorf("--service-cluster-ip-range: %q is not a CIDR", part)
		}
		if netutils.RangeSize(parsed) < minServiceIPs {
			return primary, secondary, fmt.Errorf("--service-cluster-ip-range: %s has fewer than %d addresses", part, minServiceIPs)
		}
		if ones, bits := parsed.Mask.Size(); bits-ones > 64 {
			// kube-apiserver starts with it, and ipallocator.NewIPAllocator refuses it.
			return primary, secondary, fmt.Errorf("--service-cluster-ip-range: %s is too large: an IPv6 CIDR must be /64 or longer", part)
		}
		nets = append(nets, parsed)
	}
	if len(nets) == 1 {
		return *nets[0], net.IPNet{}, nil
	}
	if netutils.IsIPv6CIDR(nets[0]) == netutils.IsIPv6CIDR(nets[1]) {
		return primary, secondary, errors.New("--service-cluster-ip-range: two CIDRs must be of different IP families")
	}
	return *nets[0], *nets[1], nil
}

// minServiceIPs is kube-apiserver's lower bound.
const minServiceIPs = 8

// Validate returns one error for each invalid flag.
func (o *ClusterOptions) Validate() []error {
	var errs invalid
	_, _, err := o.serviceNets()
	errs.add(err)
	errs.unless(o.NodePortRange.Size > 0, "--service-node-port-range must not be empty")
	if port := o.ServiceNodePort; port < 0 || port > 65535 {
		errs.add(fmt.Errorf("--kubernetes-service-node-port must be between 0 and 65535, not %d", port))
	} else {
		errs.unless(port == 0 || o.NodePortRange.Contains(port),
			"--kubernetes-service-node-port: %d is not in --service-node-port-range, %s", port, o.NodePortRange.String())
	}
	switch reconcilers.Type(o.EndpointReconciler) {
	case reconcilers.LeaseEndpointReconcilerType, reconcilers.NoneEndpointReconcilerType:
	case reconcilers.MasterCountReconcilerType:
		errs.add(errors.New("--endpoint-reconciler-type: master-count can't tell which servers are up: use lease"))
	default:
		errs.add(fmt.Errorf("--endpoint-reconciler-type: %q is neither lease nor none", o.EndpointReconciler))
	}
	errs.unless((o.ProxyCertFile == "") == (o.ProxyKeyFile == ""),
		"--proxy-client-cert-file and --proxy-client-key-file must be given together")
	_, err = ReadEgressSelector(o.EgressSelectorFile)
	errs.add(err)
	errs.unless(o.EventTTL > 0, "--event-ttl must be positive")
	return errs
}

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"

	"github.com/google/uuid"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/egressselector"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"

	"byre/apiserver/controllers"

	"byre/apiserver/process"
)

// network is how the server is reached, and how it connects to others.
type network struct {
	// id names this server among the servers of a cluster.
	id       string
	listener net.Listener
	insecure net.Listener // nil without --insecure-port
	port     string       // the port that listener is bound to
	// address is the host and port at which clients find this server; self is the URL at
	// which it reaches its own listener.
	address string
	self    *url.URL
	egress  egress
	tracer  tracing.TracerProvider // nil without --tracing-config-file
}

// newNetwork binds the ports. A port in use is found at once, before the slow parts of a start, and
// early clients wait in the listener's queue instead of being refused.
// The caller closes what the network has, also after an error.
func newNetwork(ctx context.Context, o Completed) (n network, err error) {
	if n.egress, err = newEgress(o.Cluster.EgressSelectorFile); err != nil {
		return n, err
	}
	if n.listener, err = process.Listen(ctx, o.Serving); err != nil {
		return n, err
	}
	if n.insecure, err = process.ListenInsecure(ctx, o.Serving); err != nil {
		return n, err
	}
	if _, n.port, err = net.SplitHostPort(n.listener.Addr().String()); err != nil {
		return n, err
	}
	n.address = o.ExternalAddress(n.port)
	if n.self, err = url.Parse(o.LocalURL(n.port)); err != nil {
		return n, err
	}
	if n.id, err = newID(n.port); err != nil {
		return n, err
	}
	n.tracer, err = newTracer(o.TracingFile, n.id, n.egress.selector)
	return n, err
}

// newID makes the name of this server. Where servers have identity Leases, it derives from the
// host name and the port; otherwise it is random.
func newID(port string) (string, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) {
		return "byre-" + uuid.NewString(), nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("server identity: %w", err)
	}
	return controllers.ServerID(hostname, port)
}

// egress holds the dial functions of connections that the server makes. A nil dial
// function connects directly.
type egress struct {
	selector *egressselector.EgressSelector // nil without --egress-selector-config-file
	// controlPlane dials issuers, webhooks by URL and trace collectors; cluster dials
	// nodes, Pods and Services.
	controlPlane, cluster utilnet.DialFunc
}

// newEgress reads --egress-selector-config-file.
func newEgress(file string) (egress, error) {
	selector, err := ReadEgressSelector(file)
	if selector == nil || err != nil {
		return egress{}, err
	}
	e := egress{selector: selector}
	if e.controlPlane, err = selector.Lookup(egressselector.ControlPlane.AsNetworkContext()); err != nil {
		return egress{}, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if e.cluster, err = selector.Lookup(egressselector.Cluster.AsNetworkContext()); err != nil {
		return egress{}, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	return e, nil
}

// newProxyTransport makes the transport of the proxy subresources of Pods, Services and
// nodes. It does not verify certificates, because it connects to IP addresses; see
// kube-apiserver's CreateProxyTransport.
func newProxyTransport(dial utilnet.DialFunc) *http.Transport {
	return utilnet.SetTransportDefaults(&http.Transport{
		DialContext:     dial,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	})
}

package controllers

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"
	"k8s.io/utils/ptr"
)

// servingApprover approves the certificates that kubelets serve with. Upstream's controller approves only those for
// clients, because a node says itself what its addresses are. So the cluster's administrator must have allowed it:
// nodes may create certificatesigningrequests/selfnodeserver, as they may create selfnodeclient for upstream's. And a
// node gets no name or address that is another's; see refuse.
type servingApprover struct {
	// self is a client of this server itself: upstream's role of the controller allows neither to read Nodes, nor to
	// approve for this signer.
	self kubernetes.Interface
	// host is the name of the Node on the server's own host, if there is one.
	host string
	// hosts are the server's own names and addresses.
	hosts Hosts
}

func newServingApprover(self kubernetes.Interface, hosts Hosts) (*servingApprover, error) {
	name, err := os.Hostname()
	return &servingApprover{self, strings.ToLower(strings.TrimSpace(name)), hosts}, err // as a kubelet names its Node
}

// handle is called for each CertificateSigningRequest, and again later if it returns an error.
func (a *servingApprover) handle(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	approved, denied := certificates.GetCertApprovalCondition(&csr.Status)
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName || approved || denied {
		return nil
	}
	request, err := certificatesapi.ParseCSR(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("parse the request %s: %w", csr.Name, err)
	}
	usages := sets.NewString()
	for _, usage := range csr.Spec.Usages {
		usages.Insert(string(usage))
	}
	if err := certificatesapi.ValidateKubeletServingCSR(request, usages); err != nil || request.Subject.CommonName != csr.Spec.Username {
		return nil // not what a kubelet asks for: a human decides
	}
	if allowed, err := a.isAllowed(ctx, &csr.Spec); err != nil || !allowed {
		return err
	}
	refused, err := a.refuse(ctx, strings.TrimPrefix(csr.Spec.Username, "system:node:"), request)
	if err != nil {
		return err
	}
	if refused != "" {
		return certificates.IgnorableError("the request %s is not approved: %s", csr.Name, refused)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "AutoApproved", Message: "Auto approving kubelet serving certificate after SubjectAccessReview.",
	})
	_, err = a.self.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	return err
}

func (a *servingApprover) isAllowed(ctx context.Context, by *certificatesv1.CertificateSigningRequestSpec) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(by.Extra))
	for key, values := range by.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := a.self.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: by.Username, UID: by.UID, Groups: by.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests", Subresource: "selfnodeserver", Verb: "create"},
	}}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}

// refuse says why a node does not get a certificate for the names and addresses that it asks for; "" if it does.
// They are the Node's name, and addresses of its status that no other Node has. Those of the API server, which has
// the same CA, are for no kubelet but those on its hosts, and those that several servers may share for none.
func (a *servingApprover) refuse(ctx context.Context, name string, request *x509.CertificateRequest) (string, error) {
	nodes, err := a.self.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", err
	}
	owners := make(map[string][]string) // the Nodes of an address
	for i := range nodes.Items {
		for _, address := range nodes.Items[i].Status.Addresses {
			owners[address.Address] = append(owners[address.Address], nodes.Items[i].Name)
		}
	}
	servers, own, err := a.serverHosts(ctx, name)
	if err != nil {
		return "", err
	}
	isReserved := func(asked string) bool { return servers.Has(asked) && !own.Has(asked) }
	for _, asked := range request.DNSNames {
		// Clients match wildcards and ignore case; the comparisons here do neither.
		if asked != name || len(validation.IsDNS1123Subdomain(asked)) > 0 || asked == "localhost" || asked == "kubernetes" || strings.HasPrefix(asked, "kubernetes.") {
			return fmt.Sprintf("%s is not the name of a node %s", asked, name), nil
		}
		if isReserved(asked) {
			return asked + " is a name of the API server", nil
		}
	}
	for _, ip := range request.IPAddresses {
		asked := ip.String()
		if of := slices.Compact(slices.Sorted(slices.Values(owners[asked]))); !slices.Equal(of, []string{name}) {
			return fmt.Sprintf("%s is an address of the nodes %q", asked, of), nil
		}
		if ip.IsLoopback() || isReserved(asked) {
			return asked + " is an address of the API server", nil
		}
	}
	return "", nil
}

// serverHosts returns the names and addresses of the API server: those in this server's certificates, those of the
// Service kubernetes, and those of its endpoints. own are the ones that the Node name may have.
func (a *servingApprover) serverHosts(ctx context.Context, name string) (all, own sets.Set[string], err error) {
	service, err := a.self.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	slicesOf, err := a.self.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		return nil, nil, err
	}
	endpoints := sets.New[string]()
	for i := range slicesOf.Items {
		for _, endpoint := range slicesOf.Items[i].Endpoints {
			endpoints.Insert(endpoint.Addresses...)
		}
	}
	if name == a.host {
		own = endpoints.Union(canonical(a.hosts.Own))
	} else if ok, err := a.isReplica(ctx, name); err != nil {
		return nil, nil, err
	} else if ok {
		own = endpoints.Clone().Insert(name)
	}
	return endpoints.Union(canonical(a.hosts.All)).Insert(service.Spec.ClusterIPs...), own.Delete(service.Spec.ClusterIPs...), nil
}

// isReplica reports whether a server runs on a host, by its identity Lease. Nodes can't write these.
func (a *servingApprover) isReplica(ctx context.Context, host string) (bool, error) {
	leases, err := a.self.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(leases.Items, func(l coordinationv1.Lease) bool {
		lifetime := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
		return strings.EqualFold(l.Labels[corev1.LabelHostname], host) && time.Since(ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{}).Time) < lifetime
	}), nil
}

// canonical returns hosts as requests for certificates have them: clients don't tell the forms of a host apart.
func canonical(hosts []string) sets.Set[string] {
	all := sets.New[string]()
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			host = ip.String()
		}
		all.Insert(strings.ToLower(strings.TrimSuffix(host, ".")))
	}
	return all
}

package controllers

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"
)

// servingApprover approves the certificates that kubelets serve with. Upstream's controller approves only those for
// clients, because a node says itself what its addresses are. So the cluster's administrator must have allowed it:
// nodes may create certificatesigningrequests/selfnodeserver, as they may create selfnodeclient for upstream's. And a
// node gets no name or address that is another's; see refuse.
type servingApprover struct {
	// self is a client of this server itself: upstream's role of the controller allows neither to read Nodes, nor to
	// approve for this signer.
	self kubernetes.Interface
	// id and hosts are those of this server, which may not have published them yet.
	id    string
	hosts func() ([]string, error)
	// logged has the refusals that have been logged, up to mostLogged: each request is looked at again and again, and a
	// kubelet makes a new one every quarter of an hour.
	mutex  sync.Mutex
	logged sets.Set[string]
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
	if err := certificatesapi.ValidateKubeletServingCSR(request, usagesOf(csr)); err != nil || request.Subject.CommonName != csr.Spec.Username {
		return nil // not what a kubelet asks for: a human decides
	}
	if allowed, err := a.isAllowed(ctx, &csr.Spec); err != nil || !allowed {
		return err
	}
	name := strings.TrimPrefix(csr.Spec.Username, nodeUserPrefix)
	claims, refused, err := a.refuse(ctx, name, credentialOf(csr), request)
	if err != nil {
		return err
	}
	if refused != "" {
		if a.isNew(name + ": " + refused) {
			klog.FromContext(ctx).Info("A node's serving certificate is not approved and waits for kubectl certificate approve",
				"csr", csr.Name, "node", name, "reason", refused)
		}
		return certificates.IgnorableError("the request %s is not approved: %s", csr.Name, refused)
	}
	if err := a.claim(ctx, name, claims); err != nil {
		return err
	}
	return approve(ctx, a.self, csr, autoApproved, "Auto approving kubelet serving certificate after SubjectAccessReview.")
}

const mostLogged = 1000

// isNew reports whether a refusal has not been logged yet.
func (a *servingApprover) isNew(refusal string) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.logged.Has(refusal) {
		return false
	}
	if a.logged == nil || len(a.logged) >= mostLogged {
		a.logged = sets.New[string]()
	}
	a.logged.Insert(refusal)
	return true
}

// autoApproved is the reason that upstream's approver gives.
const autoApproved = "AutoApproved"

func approve(ctx context.Context, client kubernetes.Interface, csr *certificatesv1.CertificateSigningRequest, reason, message string) error {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	_, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
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

// addressLabel is the prefix of the labels of a Node that say for which of its addresses it has been given a
// certificate. A Node keeps such an address while its status has it, whatever other Nodes say. The admission plugin
// NodeRestriction lets no node set labels with this suffix.
const addressLabel = "serving-address." + corev1.LabelNamespaceNodeRestriction + "/"

// labelOf returns the label for an address. A label has no colons, and ends with a letter or digit.
func labelOf(address netip.Addr) string {
	return addressLabel + strings.ReplaceAll(address.StringExpanded(), ":", "-")
}

// refuse says why a node does not get a certificate for the names and addresses that it asks for; "" if it does. claims
// are the labels of the addresses that are the Node's from then on.
//
// They are the Node's name, and addresses of its status, of which none is another Node's. Those of the API servers,
// which have the same CA, are for no node but one that is on that server's host: its name is the host's, and its
// credential descends from a token that was made for it.
func (a *servingApprover) refuse(ctx context.Context, name, credential string, request *x509.CertificateRequest) (claims []string, refused string, err error) {
	nodes, err := a.self.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", err
	}
	reserved, own, err := a.serverHosts(ctx, name, credential)
	if err != nil {
		return nil, "", err
	}
	ranges, err := a.serviceRanges(ctx)
	if err != nil {
		return nil, "", err
	}
	for _, asked := range request.DNSNames {
		// Clients match wildcards and ignore case; the comparisons here do neither.
		if asked != name || len(validation.IsDNS1123Subdomain(asked)) > 0 || asked == "localhost" || asked == "kubernetes" || strings.HasPrefix(asked, "kubernetes.") {
			return nil, fmt.Sprintf("%s is not the name of a node %s", asked, name), nil
		}
		_, domain, _ := strings.Cut(asked, ".")
		if reserved.HasAny(asked, "*."+domain) && !own.Has(asked) {
			return nil, ofServer(asked, name), nil
		}
	}
	for _, ip := range request.IPAddresses {
		asked, ok := netip.AddrFromSlice(ip)
		asked = asked.Unmap()
		isService := func(r netip.Prefix) bool { return r.Contains(asked) }
		if !ok || !ip.IsGlobalUnicast() || slices.ContainsFunc(ranges, isService) {
			return nil, fmt.Sprintf("%s can't be the address of one node: it is of Services, or its scope is not global", asked), nil
		}
		isServer := own.Has(asked.String())
		if reserved.Has(asked.String()) && !isServer {
			return nil, ofServer(asked.String(), name), nil
		}
		label := labelOf(asked)
		isOwn, isClaimed, others := false, false, []string(nil)
		for i := range nodes.Items {
			node := &nodes.Items[i]
			_, claimed := node.Labels[label]
			switch {
			case !hasAddress(node, asked):
			case node.Name == name:
				isOwn, isClaimed = true, claimed
			case isServer: // whatever other Nodes say
			case claimed:
				return nil, fmt.Sprintf("%s is an address of the node %s", asked, node.Name), nil
			default:
				others = append(others, node.Name)
			}
		}
		if !isOwn {
			return nil, fmt.Sprintf("the Node %s does not have the address %s", name, asked), nil
		}
		if isServer || isClaimed {
			continue
		}
		if len(others) > 0 {
			return nil, fmt.Sprintf("%s is an address of the nodes %q too, and none has been given a certificate for it yet", asked, others), nil
		}
		claims = append(claims, label)
	}
	return claims, "", nil
}

func ofServer(host, node string) string {
	return fmt.Sprintf("%s is a name or an address of the API server: on its host, join by byre token create --node %s", host, node)
}

func hasAddress(node *corev1.Node, asked netip.Addr) bool {
	return slices.ContainsFunc(node.Status.Addresses, func(address corev1.NodeAddress) bool {
		own, err := netip.ParseAddr(address.Address)
		return err == nil && own.Unmap() == asked
	})
}

// claim gives labels to a Node.
func (a *servingApprover) claim(ctx context.Context, node string, labels []string) error {
	if len(labels) == 0 {
		return nil
	}
	all := make(map[string]string, len(labels))
	for _, label := range labels {
		all[label] = ""
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": all}})
	if err != nil {
		return err
	}
	_, err = a.self.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// serverHosts returns the names and addresses of all API servers: those that the servers have published, this server's,
// and the endpoints of the Service kubernetes, among which may be older servers. own are those of the servers on the
// host of a node, if it is proven that it is there.
func (a *servingApprover) serverHosts(ctx context.Context, node, credential string) (all, own sets.Set[string], err error) {
	servers, err := PublishedHosts(ctx, a.self)
	if err != nil {
		return nil, nil, err
	}
	hosts, err := a.hosts()
	if err != nil {
		return nil, nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, nil, err
	}
	servers[a.id] = ServerHosts{Hostname: hostname, Hosts: hosts}
	endpoints, err := a.self.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		return nil, nil, err
	}
	all, own = sets.New[string](), sets.New[string]()
	for i := range endpoints.Items {
		for _, endpoint := range endpoints.Items[i].Endpoints {
			all.Insert(canonical(endpoint.Addresses)...)
		}
	}
	for _, server := range servers {
		hosts := canonical(append([]string{server.Hostname}, server.Hosts...))
		all.Insert(hosts...)
		if strings.EqualFold(strings.TrimSpace(server.Hostname), node) { // as a kubelet names its Node
			own.Insert(hosts...)
		}
	}
	if len(own) > 0 {
		known, err := provenCredentials(ctx, a.self, node)
		if err != nil {
			return nil, nil, err
		}
		if !slices.Contains(known, credential) {
			own = nil
		}
	}
	return all, own, nil
}

// serviceRanges returns the ranges of the addresses of Services.
func (a *servingApprover) serviceRanges(ctx context.Context) ([]netip.Prefix, error) {
	list, err := a.self.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ranges []netip.Prefix
	for i := range list.Items {
		for _, text := range list.Items[i].Spec.CIDRs {
			cidr, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, err
			}
			ranges = append(ranges, cidr)
		}
	}
	return ranges, nil
}

// canonical returns hosts as requests for certificates have them: clients don't tell the forms of a host apart.
func canonical(hosts []string) []string {
	all := make([]string, 0, len(hosts))
	for _, host := range hosts {
		if ip, err := netip.ParseAddr(host); err == nil {
			host = ip.Unmap().String()
		}
		all = append(all, strings.ToLower(strings.TrimSuffix(strings.TrimSpace(host), ".")))
	}
	return all
}

package controllers

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/klog/v2"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/clustertrustbundlepublisher"
	"k8s.io/kubernetes/pkg/features"
)

// certificateWorkers is kube-controller-manager's number.
const certificateWorkers = 5

// newCertificateApproving builds upstream's approver of client certificates, and beside it those of
// serving certificates and of tokens for one node, which kube-controller-manager does not have.
func newCertificateApproving(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	requests := cc.InformerFactory.Certificates().V1().CertificateSigningRequests()
	tokens := nodeTokens{cc.Self}
	if err := tokens.follow(ctx, requests.Informer()); err != nil {
		return nil, err
	}
	serving := &servingApprover{self: cc.Self, id: cc.ServerID, hosts: cc.Hosts}
	var runs []func(context.Context)
	for _, c := range []*certificates.CertificateController{
		approver.NewCSRApprovingController(ctx, cc.kube, requests),
		certificates.NewCertificateController(ctx, "csrapproving-node-token", cc.kube, requests, tokens.handle),
		certificates.NewCertificateController(ctx, "csrapproving-kubelet-serving", cc.kube, requests, serving.handle),
	} {
		runs = append(runs, func(ctx context.Context) { c.Run(ctx, certificateWorkers) })
	}
	return together(runs...), nil
}

func newCertificateCleaner(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	requests := cc.InformerFactory.Certificates().V1().CertificateSigningRequests()
	synced := requests.Informer().HasSynced
	c := cleaner.NewCSRCleanerController(cc.kube.CertificatesV1().CertificateSigningRequests(), requests)
	return func(ctx context.Context) {
		// Upstream's controller reads the informer at once, and then every hour. With an
		// informer that has not listed yet, it would find nothing for the first hour.
		if cache.WaitForCacheSync(ctx.Done(), synced) {
			c.Run(ctx, 1)
		}
	}, nil
}

// newTrustBundlePublisher builds the controller that publishes the CA of this server's
// certificate as a ClusterTrustBundle. It builds none if the feature is off, or if there is no
// such CA. Upstream's constructor takes the CA from a file or from the configuration of a client.
func newTrustBundlePublisher(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ClusterTrustBundle) || len(cc.RootCA) == 0 {
		return nil, nil
	}
	const signerName = "kubernetes.io/kube-apiserver-serving"
	ca, err := dynamiccertificates.NewStaticCAContent("kube-apiserver-serving", cc.RootCA)
	if err != nil {
		return nil, err
	}
	c, err := clustertrustbundlepublisher.NewGAClusterTrustBundlePublisher(signerName, ca, cc.kube)
	return runOf(c, err)
}

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
	if err := certificatesapi.ValidateKubeletServingCSR(request, usagesOf(csr)); err != nil ||
		request.Subject.CommonName != csr.Spec.Username {
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

func approve(
	ctx context.Context, client kubernetes.Interface, csr *certificatesv1.CertificateSigningRequest, reason,
	message string,
) error {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	_, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr,
		metav1.UpdateOptions{})
	return err
}

func (a *servingApprover) isAllowed(
	ctx context.Context, by *certificatesv1.CertificateSigningRequestSpec,
) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(by.Extra))
	for key, values := range by.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := a.self.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: by.Username, UID: by.UID, Groups: by.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: certificatesv1.GroupName, Version: "*",
				Resource: "certificatesigningrequests", Subresource: "selfnodeserver", Verb: "create"},
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
func (a *servingApprover) refuse(
	ctx context.Context, name, credential string, request *x509.CertificateRequest,
) (claims []string, refused string, err error) {
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
		if asked != name || len(validation.IsDNS1123Subdomain(asked)) > 0 || asked == "localhost" || asked == "kubernetes" ||
			strings.HasPrefix(asked, "kubernetes.") {
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
			return nil, fmt.Sprintf("%s can't be the address of one node: it is of Services, or its scope is not global", asked),
				nil
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
			return nil,
				fmt.Sprintf("%s is an address of the nodes %q too, and none has been given a certificate for it yet", asked,
					others), nil
		}
		claims = append(claims, label)
	}
	return claims, "", nil
}

func ofServer(host, node string) string {
	return fmt.Sprintf("%s is a name or an address of the API server: on its host, join by byre token create --node %s",
		host, node)
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
func (a *servingApprover) serverHosts(
	ctx context.Context, node, credential string,
) (all, own sets.Set[string], err error) {
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
	endpoints, err := a.self.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
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

// TokenNodeAnnotation is the annotation of the Secret of a bootstrap token that says which Node joins by it. The token
// is good for that Node's first certificate alone, while there is no such Node. Its user must not have the right by
// which upstream's controller approves the certificates of all nodes.
const TokenNodeAnnotation = "byre.dev/node"

const (
	nodeUserPrefix = "system:node:"
	// CredentialsConfigMap is the ConfigMap in kube-system that has, under the names of Nodes, the credentials of those
	// that have joined by such a token, as CertificateSigningRequests name them. Another token, or the kubelet of another
	// machine before, can have got a certificate for the same name: the name proves nothing, and so its holder must not
	// get what the API server on its host is called.
	CredentialsConfigMap = "byre-node-credentials"
	// nodeTokenReason is the reason of the approval of a certificate for the holder of such a token.
	nodeTokenReason = "NodeToken"
)

// nodeTokens approves the first certificate of a node whose token was made for it, and records its credential, and that
// of its renewals.
type nodeTokens struct{ self kubernetes.Interface }

// handle is called for each CertificateSigningRequest, and again later if it returns an error.
func (n nodeTokens) handle(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	approved, denied := certificates.GetCertApprovalCondition(&csr.Status)
	token, isToken := strings.CutPrefix(csr.Spec.Username, bootstrapapi.BootstrapUserPrefix)
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || !isToken || approved || denied {
		return nil
	}
	secret, err := n.self.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, bootstrapapi.BootstrapTokenSecretPrefix+token,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // withdrawn meanwhile
	}
	if err != nil {
		return err
	}
	name := secret.Annotations[TokenNodeAnnotation]
	if name == "" {
		return nil
	}
	request, err := certificatesapi.ParseCSR(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("parse the request %s: %w", csr.Name, err)
	}
	if !certificatesapi.IsKubeletClientCSR(request, usagesOf(csr)) || request.Subject.CommonName != nodeUserPrefix+name {
		return certificates.IgnorableError("the request %s is not approved: the token is for the node %s", csr.Name, name)
	}
	_, err = n.self.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return certificates.IgnorableError("the request %s is not approved: there is a Node %s already", csr.Name, name)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	return approve(ctx, n.self, csr, nodeTokenReason, "The token was made for this node.")
}

// follow records the credentials in the certificates of requests, until ctx ends.
func (n nodeTokens) follow(ctx context.Context, requests cache.SharedIndexInformer) error {
	record := func(object any) {
		csr, ok := object.(*certificatesv1.CertificateSigningRequest)
		if !ok || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName ||
			len(csr.Status.Certificate) == 0 {
			return
		}
		// The signed request is deleted after an hour.
		again := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 15, Cap: time.Minute}
		var err error
		ended := wait.ExponentialBackoffWithContext(ctx, again, func(ctx context.Context) (bool, error) {
			err = n.record(ctx, csr)
			return err == nil, nil
		})
		if ended != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not record the credential of a node", "csr", csr.Name)
		}
	}
	_, err := requests.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: record, UpdateFunc: func(_, csr any) {
		record(csr)
	}})
	return err
}

// record records the credential in a signed request: that of a node that has joined by its token, and the next of one
// that has renewed its certificate with a recorded one.
func (n nodeTokens) record(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	block, _ := pem.Decode(csr.Status.Certificate)
	if block == nil {
		return nil
	}
	issued, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil //nolint:nilerr // no node can use it
	}
	name, isNode := strings.CutPrefix(issued.Subject.CommonName, nodeUserPrefix)
	if !isNode {
		return nil
	}
	fingerprint := sha256.Sum256(issued.Raw)
	credentials := []string{"X509SHA256=" + hex.EncodeToString(fingerprint[:])} // as the x509 authenticator names it
	known, err := provenCredentials(ctx, n.self, name)
	if err != nil || slices.Contains(known, credentials[0]) {
		return err
	}
	if !slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved && c.Reason == nodeTokenReason
	}) {
		used := credentialOf(csr)
		if csr.Spec.Username != issued.Subject.CommonName || !slices.Contains(known, used) {
			return nil
		}
		credentials = append(credentials, used) // which the kubelet has until it has stored the new one
	}
	return PatchConfigMap(ctx, n.self, CredentialsConfigMap, map[string]*string{name: new(strings.Join(credentials, " "))})
}

// provenCredentials returns the credentials of a Node that has joined by a token made for it.
func provenCredentials(ctx context.Context, self kubernetes.Interface, node string) ([]string, error) {
	proven, err := self.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, CredentialsConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Fields(proven.Data[node]), nil
}

// credentialOf returns the credential by which a request was made; "" if it is not known.
func credentialOf(csr *certificatesv1.CertificateSigningRequest) string {
	return strings.Join(csr.Spec.Extra[user.CredentialIDKey], " ")
}

func usagesOf(csr *certificatesv1.CertificateSigningRequest) sets.String { //nolint:staticcheck // upstream takes it
	usages := sets.NewString()
	for _, usage := range csr.Spec.Usages {
		usages.Insert(string(usage))
	}
	return usages
}

package controllers

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/klog/v2"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"
)

// TokenNodeAnnotation is the annotation of the Secret of a bootstrap token that says which Node joins by it. The token
// is good for that Node's first certificate alone, while there is no such Node. Its user must not have the right by
// which upstream's controller approves the certificates of all nodes.
const TokenNodeAnnotation = "byre.dev/node"

const (
	nodeUserPrefix = "system:node:"
	// CredentialsConfigMap is the ConfigMap in kube-system that has, under the names of Nodes, the credentials of those that
	// have joined by such a token, as CertificateSigningRequests name them. Another token, or the kubelet of another
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
	secret, err := n.self.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, bootstrapapi.BootstrapTokenSecretPrefix+token, metav1.GetOptions{})
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
		if !ok || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || len(csr.Status.Certificate) == 0 {
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
	_, err := requests.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: record, UpdateFunc: func(_, csr any) { record(csr) }})
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

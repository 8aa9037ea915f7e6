package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kube-openapi/pkg/common"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"byre/apiserver/storage"
)

// buildAuthenticator builds the union of authenticators that the flags configure. Upstream's options
// also start the goroutine that reloads --authentication-config, which ends with ctx.
func (a *Auth) buildAuthenticator(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authentication
	flags, err := a.upstreamOptions(o, cfg.Reader)
	if err != nil {
		return err
	}
	if err := o.checkConfiguration(flags); err != nil {
		return err
	}
	var info genericapiserver.AuthenticationInfo
	sources := storage.CoreInformers{SharedInformerFactory: cfg.Informers,
		Secrets: storage.Informer[corev1listers.SecretLister]{Of: secretLister{cfg.Reader}}}
	err = flags.ApplyTo(ctx, &info, nil, cfg.EgressSelector, &common.Config{}, nil, cfg.Client, sources, cfg.ServerID)
	if err != nil {
		return err
	}
	a.Authenticator, a.APIAudiences, a.RequestHeader = info.Authenticator, a.TokenIssuer.Audiences,
		info.RequestHeaderConfig
	for _, ca := range a.clientCAs {
		a.Authenticator = union.New(newCachedX509Authenticator(ca.VerifyOptions, o.RequestHeader.UsernameHeaders),
			a.Authenticator)
	}
	return nil
}

// secretLister is the lister for bootstrap tokens. It reads the watch cache only: anyone can send a
// token that names a Secret, and such a request must not cause a database query. An informer would
// keep every Secret decoded, for tokens that are few and seldom used.
type secretLister struct{ *storage.LookupReader }

// List implements corev1listers.SecretLister.
func (l secretLister) List(selector labels.Selector) ([]*v1.Secret, error) {
	return l.LookupReader.Secrets.Lister(metav1.NamespaceAll).List(selector)
}

// Secrets implements corev1listers.SecretLister.
func (l secretLister) Secrets(namespace string) corev1listers.SecretNamespaceLister {
	return l.LookupReader.Secrets.Lister(namespace)
}

// upstreamOptions returns the flags as upstream takes them, with what is read otherwise here: the CAs
// of users, the keys of service accounts, and the objects that tokens name.
func (a *Auth) upstreamOptions(
	o *AuthenticationOptions, reader *storage.LookupReader,
) (*kubeoptions.BuiltInAuthenticationOptions, error) {
	if err := a.loadClientCA(o); err != nil {
		return nil, err
	}
	flags, accounts := o.BuiltInAuthenticationOptions, *o.ServiceAccounts
	flags.ServiceAccounts, accounts.KeyFiles, accounts.ExternalPublicKeysGetter = &accounts, nil, a.TokenIssuer.keys
	accounts.OptionalTokenGetter = func(informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
		return serviceAccountTokenGetter{reader}
	}
	flags.ClientCert = &genericoptions.ClientCertAuthenticationOptions{CAContentProvider: a.ClientCA}
	return &flags, nil
}

// checkConfiguration checks what upstream's options do not, or in words of their own.
func (o *AuthenticationOptions) checkConfiguration(flags *kubeoptions.BuiltInAuthenticationOptions) error {
	checked, anonymous := *flags, *o.Anonymous
	checked.Anonymous, anonymous.FlagsSet = &anonymous, false
	config, err := checked.ToAuthenticationConfig()
	if err != nil {
		return err
	}
	if o.Anonymous.FlagsSet && config.AuthenticationConfig.Anonymous != nil {
		return errors.New("--anonymous-auth and the anonymous section of --authentication-config exclude each other")
	}
	// ToAuthenticationConfig does not compare the issuers with those of service accounts.
	errs := apiservervalidation.ValidateAuthenticationConfiguration(
		authenticationcel.NewDefaultCompiler(), config.AuthenticationConfig, config.ServiceAccountIssuers)
	if err := errs.ToAggregate(); err != nil {
		return fmt.Errorf("invalid configuration: %w", err)
	}
	return nil
}

// loadClientCA reads the CAs of users.
func (a *Auth) loadClientCA(o *AuthenticationOptions) error {
	if err := o.validateOverlap(); err != nil || o.ClientCert.ClientCA == "" {
		return err
	}
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", o.ClientCert.ClientCA)
	if err != nil {
		return fmt.Errorf("--client-ca-file: %w", err)
	}
	a.ClientCA, a.clientCAs = ca, append(a.clientCAs, ca)
	if o.serverCAFile != "" && o.serverCAFile != o.ClientCert.ClientCA {
		serverCA, err := dynamiccertificates.NewDynamicCAContentFromFile("server-ca", o.serverCAFile)
		if err != nil {
			return err
		}
		a.ClientCA, a.clientCAs = dynamiccertificates.NewUnionCAContentProvider(ca, serverCA), append(a.clientCAs, serverCA)
	}
	return nil
}

const (
	// certificateCacheSize is the largest number of cached entries.
	certificateCacheSize = 4096
	// maxCachedChain is the largest number of certificates presented by a client
	// for which the result is cached.
	maxCachedChain = 3
)

// cachedX509Authenticator authenticates client certificates.
//
// What upstream does: it verifies the signatures of a client's certificates at each request
// of a connection.
//
// What is done instead: the user that a certificate belongs to is cached.
//
// What it relies on: upstream derives the user from the certificates alone.
// TestCertificateCache_AnswersAsUpstream fails when a cached answer is another than upstream's.
//
// What it earns: a request takes less than a hundredth of the time of the verification, and 1
// allocation instead of 40 (BenchmarkCertificates). The verification takes more processor time
// than the rest of most requests.
//
// Invariant: a cached result is used only if a new verification would give the same
// result. That holds if the client presents the same certificates, the pool of CAs is
// the same, and no certificate of the verified chain has expired. Kubernetes has no
// revocation lists.
//
// If verification fails, the authenticator returns no opinion and no error. The next
// authenticators of the union, which are upstream's, then verify the certificate again
// and report the error and the metrics that kube-apiserver reports.
type cachedX509Authenticator struct {
	verifyOptions x509request.VerifyOptionFunc
	// proxyHeaders are the headers in which a front proxy names users. A request
	// with one of them is left to upstream's authenticators: they check first
	// whether the certificate is a front proxy's.
	proxyHeaders []string
	clock        clock.PassiveClock
	seed         maphash.Seed
	cache        *lru.Cache // of uint64, a hash of the presented certificates, to *verifiedChain
}

// verifiedChain is the result of a successful verification of the presented
// certificates. It is valid with the pool roots and before notAfter. Another
// certificate with the same hash does no harm, because the presented certificates are
// compared with those of the entry.
type verifiedChain struct {
	presented []*x509.Certificate
	roots     *x509.CertPool
	notAfter  time.Time
	response  *authenticator.Response
}

func newCachedX509Authenticator(options x509request.VerifyOptionFunc, proxyHeaders []string) *cachedX509Authenticator {
	return &cachedX509Authenticator{
		verifyOptions: options,
		proxyHeaders:  proxyHeaders,
		clock:         clock.RealClock{},
		seed:          maphash.MakeSeed(),
		cache:         lru.New(certificateCacheSize),
	}
}

// AuthenticateRequest implements authenticator.Request. It returns no errors.
func (c *cachedX509Authenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || len(r.TLS.PeerCertificates) > maxCachedChain {
		return nil, false, nil
	}
	for _, header := range c.proxyHeaders {
		if len(r.Header.Values(header)) > 0 {
			return nil, false, nil
		}
	}
	options, ok := c.verifyOptions()
	if !ok {
		return nil, false, nil
	}
	presented := r.TLS.PeerCertificates
	key := c.hash(presented)
	cached, _ := c.cache.Get(key)
	v, ok := cached.(*verifiedChain)
	if !ok || !v.isValid(presented, options.Roots, c.clock.Now()) {
		if v = c.verify(presented, options); v == nil {
			return nil, false, nil
		}
		c.cache.Add(key, v)
	}
	certificateExpiration().Observe(presented[0].NotAfter.Sub(c.clock.Now()).Seconds())
	return v.response, true, nil
}

func (v *verifiedChain) isValid(presented []*x509.Certificate, roots *x509.CertPool, now time.Time) bool {
	return v.roots == roots && now.Before(v.notAfter) &&
		slices.EqualFunc(v.presented, presented, (*x509.Certificate).Equal)
}

func (c *cachedX509Authenticator) hash(certificates []*x509.Certificate) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	for _, certificate := range certificates {
		_, _ = h.Write(certificate.Raw) // a maphash.Hash returns no error
	}
	return h.Sum64()
}

// verify verifies the certificates that a client presents, as upstream does. It returns nil if
// they name no user. It does not call upstream's authenticator, which observes the expiry of
// what it verifies: where the verification fails, upstream's own is called next.
func (c *cachedX509Authenticator) verify(presented []*x509.Certificate, options x509.VerifyOptions) *verifiedChain {
	options.CurrentTime = c.clock.Now()
	if len(presented) > 1 {
		options.Intermediates = x509.NewCertPool()
		for _, intermediate := range presented[1:] {
			options.Intermediates.AddCert(intermediate)
		}
	}
	chains, err := presented[0].Verify(options)
	if err != nil {
		return nil
	}
	v := &verifiedChain{presented: presented, roots: options.Roots}
	named := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		for _, chain := range chains {
			if response, ok, err := x509request.CommonNameUserConversion(chain); err == nil && ok {
				v.notAfter = slices.MinFunc(chain, func(a, b *x509.Certificate) int {
					return a.NotAfter.Compare(b.NotAfter)
				}).NotAfter
				return response, true, nil
			}
		}
		return nil, false, nil
	})
	response, ok, err := group.NewAuthenticatedGroupAdder(named).AuthenticateRequest(nil)
	if err != nil || !ok {
		return nil
	}
	v.response = response
	return v
}

// certificateExpiration returns upstream's histogram of the remaining lifetime of the
// certificates that requests were authenticated with. Upstream exports no variable of it, but
// the registry answers the registration of the same metric with it.
var certificateExpiration = sync.OnceValue(func() metrics.ObserverMetric {
	same := metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace:      "apiserver",
		Subsystem:      "client",
		Name:           "certificate_expiration_seconds",
		Help:           "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
		StabilityLevel: metrics.ALPHA,
	})
	var registered prometheus.AlreadyRegisteredError
	if errors.As(legacyregistry.Register(same), &registered) {
		if upstream, ok := registered.ExistingCollector.(*metrics.Histogram); ok {
			return upstream
		}
	}
	return same
})

// serviceAccountTokenGetter implements serviceaccount.ServiceAccountTokenGetter: it reads
// the objects that a service account token is bound to. It reads from the watch cache
// first. If the cache has no such object, it reads from the database, because another
// replica may have created the object a moment ago.
type serviceAccountTokenGetter struct {
	reader *storage.LookupReader
}

func getCachedOrLive[T any](
	ctx context.Context, resource storage.LookupResource[T], namespace, name string,
) (*T, error) {
	object, err := resource.GetCached(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return resource.Get(ctx, namespace, name)
	}
	return object, err
}

func (g serviceAccountTokenGetter) GetServiceAccount(
	ctx context.Context, namespace, name string,
) (*v1.ServiceAccount, error) {
	return getCachedOrLive(ctx, g.reader.ServiceAccounts, namespace, name)
}

func (g serviceAccountTokenGetter) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return getCachedOrLive(ctx, g.reader.Pods, namespace, name)
}

func (g serviceAccountTokenGetter) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return getCachedOrLive(ctx, g.reader.Secrets, namespace, name)
}

func (g serviceAccountTokenGetter) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	return getCachedOrLive(ctx, g.reader.Nodes, metav1.NamespaceNone, name)
}

func (g serviceAccountTokenGetter) GetValidatingWebhookConfiguration(
	ctx context.Context, name string,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return getCachedOrLive(ctx, g.reader.ValidatingWebhooks, metav1.NamespaceNone, name)
}

func (g serviceAccountTokenGetter) GetMutatingWebhookConfiguration(
	ctx context.Context, name string,
) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return getCachedOrLive(ctx, g.reader.MutatingWebhooks, metav1.NamespaceNone, name)
}

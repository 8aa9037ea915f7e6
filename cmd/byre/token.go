package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"byre/apiserver/controllers"
	"byre/cmd/byre/client"
)

const (
	// bootstrapGroup is the group of the tokens that "byre token create" makes. Upstream's controller approves the
	// certificates of any node for it.
	bootstrapGroup = "system:bootstrappers:nodes"
	// nodeTokenGroup is the group of those for one node. It may request certificates; byre's controller approves that of
	// the node.
	nodeTokenGroup = "system:bootstrappers:named-node"
)

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make tokens by which nodes join", Args: client.SubcommandOnly,
		RunE: client.Help}
	cmd.AddCommand(newTokenCreateCommand())
	return cmd
}

func newTokenCreateCommand() *cobra.Command {
	var flags client.ClusterFlags
	var ttl time.Duration
	var printJoin bool
	var joinServer, node string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token by which nodes join",
		Long: "Make a bootstrap token, by which nodes join until it expires, and print it.\n\n" +
			"The server approves the certificates of nodes that join, those that they serve with\n" +
			"too: for the node's name, and for addresses that it says are its own and no other node\n" +
			"has. Give the token to machines that you trust.\n\n" +
			"With --node the token is for one Node that does not exist yet. The API server's own host\n" +
			"needs it: no other node is given a certificate for the names and addresses of a server.\n\n" +
			"With --print-join the output is a script for the host of the node. It writes the\n" +
			"kubelet's configuration, and starts the kubelet by systemd. A container runtime, its\n" +
			"network and the kubelet must be installed there.",
		Example: "  byre token create --print-join | ssh root@node-1 sh\n" +
			"  byre token create --node $(hostname) --print-join | sh",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node = strings.ToLower(node) // as a kubelet names its Node
			if wrong := validation.IsDNS1123Subdomain(node); node != "" && len(wrong) > 0 {
				return fmt.Errorf("--node %s: %s", node, wrong[0])
			}
			if err := checkJoinServer(joinServer); err != nil {
				return fmt.Errorf("--join-server: %w", err)
			}
			config, _, err := flags.Load()
			if err != nil {
				return err
			}
			var join *joinScript // before there is a token that nobody gets
			if printJoin {
				if join, err = newJoinScript(cmd.Context(), config, joinServer, node); err != nil {
					return err
				}
			}
			token, err := createToken(cmd.Context(), config, ttl, node)
			if err != nil {
				return err
			}
			if join != nil {
				return join.write(cmd.OutOrStdout(), config, token)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	flags.AddTo(cmd)
	cmd.Flags().String("data-dir", "",
		"Data directory of the server, whose admin.kubeconfig is used if --kubeconfig is not set.")
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "How long the token is valid.")
	cmd.Flags().BoolVar(&printJoin, "print-join", false, "Print a script by which a node joins, instead of the token.")
	cmd.Flags().StringVar(&node, "node", "",
		"Name of the only Node that can join by the token. There must not be such a Node yet.")
	cmd.Flags().StringVar(&joinServer, "join-server", "",
		"https URL by which the node finds the server. If not set, the address that the server advertises.")
	return cmd
}

// checkJoinServer returns an error unless a text is empty or the https URL of a server. A node trusts what is there
// with its token, and the text becomes part of a shell script.
func checkJoinServer(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	_, notIP := netip.ParseAddr(u.Hostname())
	if notIP != nil && len(validation.IsDNS1123Subdomain(strings.ToLower(u.Hostname()))) > 0 {
		return fmt.Errorf("%q has no host", text)
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
	if u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || err != nil ||
		port == 0 || u.String() != text {
		return fmt.Errorf("%q must be a URL such as https://byre.example.com:6443", text)
	}
	return nil
}

// createToken makes a token that is valid for ttl, and lets its nodes request certificates. With a node, it is for that
// one alone. It fails if the server does not accept such tokens.
func createToken(ctx context.Context, config *rest.Config, ttl time.Duration, node string) (string, error) {
	if ttl <= 0 {
		return "", errors.New("--ttl: must be greater than 0")
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	group, annotations := bootstrapGroup, map[string]string(nil)
	if node != "" {
		group, annotations = nodeTokenGroup, map[string]string{controllers.TokenNodeAnnotation: node}
		_, err := kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil {
			return "",
				fmt.Errorf(
					"there is a Node %s already: delete it first, or approve its certificates by kubectl certificate approve", node)
		}
		if !apierrors.IsNotFound(err) {
			return "", err
		}
	}
	if err := allowNodes(ctx, kube); err != nil {
		return "", err
	}
	token, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return "", err
	}
	id, secret, _ := strings.Cut(token, ".")
	secrets := kube.CoreV1().Secrets(metav1.NamespaceSystem)
	created, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstraputil.BootstrapTokenSecretName(id), Annotations: annotations},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               id,
			bootstrapapi.BootstrapTokenSecretKey:           secret,
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey:      group,
			bootstrapapi.BootstrapTokenExpirationKey:       time.Now().Add(ttl).UTC().Format(time.RFC3339),
			bootstrapapi.BootstrapTokenDescriptionKey:      "made by byre token create",
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if err := tryToken(ctx, config, token); err != nil {
		return "", errors.Join(err, secrets.Delete(ctx, created.Name, metav1.DeleteOptions{}))
	}
	return token, nil
}

// tryToken asks the server for something that every authenticated user may read.
func tryToken(ctx context.Context, config *rest.Config, token string) error {
	joining := rest.AnonymousClientConfig(config)
	joining.BearerToken = token
	kube, err := kubernetes.NewForConfig(joining)
	if err != nil {
		return err
	}
	// Another replica than the one that took the token may answer, and see the token a little later.
	err = retry.OnError(wait.Backoff{Duration: 100 * time.Millisecond, Steps: 30}, apierrors.IsUnauthorized, func() error {
		return kube.RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	})
	if apierrors.IsUnauthorized(err) {
		return errors.New("the server accepts no bootstrap tokens: start it with --enable-bootstrap-token-auth")
	}
	return err
}

// allowNodes lets nodes that join by a token request certificates, which the server's controllers then approve. What is
// there already stays.
func allowNodes(ctx context.Context, kube kubernetes.Interface) error {
	const certificates = "system:certificates.k8s.io:certificatesigningrequests:"
	const serving = "byre:node-serving-certificates"
	_, err := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: serving},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"certificates.k8s.io"},
			Resources: []string{"certificatesigningrequests/selfnodeserver"}, Verbs: []string{"create"}}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for _, binding := range []struct{ name, role, group string }{
		{"byre:node-bootstrapper", "system:node-bootstrapper", bootstrapGroup},
		{"byre:named-node-bootstrapper", "system:node-bootstrapper", nodeTokenGroup},
		{"byre:node-client-certificates", certificates + "nodeclient", bootstrapGroup},
		{"byre:node-client-certificate-renewals", certificates + "selfnodeclient", "system:nodes"},
		{serving, serving, "system:nodes"},
	} {
		_, err := kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: binding.group}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// joinTemplate is the script that "byre token create --print-join" prints.
//
//go:embed join.sh
var joinTemplate string

// joinScript is what the script is made of.
type joinScript struct {
	// Server is the URL of the server.
	Server string
	// KubeletFlags are flags that the script's kubelet has beside those of every node, each after a space.
	KubeletFlags string
	// ClientCA is the CA of the certificate with which the server connects to kubelets.
	ClientCA string
}

// newJoinScript returns the script for nodes that find the server at a URL, or if that is empty, at the address that
// the server advertises. It lacks the token. With a node, the host becomes that one.
func newJoinScript(ctx context.Context, config *rest.Config, server, node string) (*joinScript, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	s := &joinScript{Server: cmp.Or(server, advertised(ctx, kube))}
	if s.Server == "" {
		return nil, errors.New("the server advertises no address: name one by --join-server")
	}
	if node != "" {
		s.KubeletFlags = " --hostname-override=" + node
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	// A server writes it soon after its start.
	return s, retry.OnError(retry.DefaultBackoff, apierrors.IsNotFound, func() error {
		authentication, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication",
			metav1.GetOptions{})
		s.ClientCA = authentication.Data["client-ca-file"]
		return err
	})
}

// write writes the script with a token. newJoinScript has loaded the files of config.
func (s *joinScript) write(w io.Writer, config *rest.Config, token string) error {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["byre"] = &clientcmdapi.Cluster{Server: s.Server, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["bootstrap"] = &clientcmdapi.AuthInfo{Token: token}
	kubeconfig.Contexts["byre"] = &clientcmdapi.Context{Cluster: "byre", AuthInfo: "bootstrap"}
	kubeconfig.CurrentContext = "byre"
	text, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return err
	}
	_, err = strings.NewReplacer("{{server}}", s.Server, "{{kubeconfig}}", string(text), "{{clientCA}}", s.ClientCA,
		"{{kubeletFlags}}", s.KubeletFlags).WriteString(w, joinTemplate)
	return err
}

// advertised returns the URL of the first endpoint of the Service kubernetes; "" if it has none.
func advertised(ctx context.Context, kube kubernetes.Interface) string {
	found, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || len(found.Endpoints) == 0 || len(found.Ports) == 0 {
		return ""
	}
	return "https://" + net.JoinHostPort(found.Endpoints[0].Addresses[0], strconv.Itoa(int(*found.Ports[0].Port)))
}

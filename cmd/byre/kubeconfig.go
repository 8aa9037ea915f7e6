package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"byre/apiserver/process/pki"
)

// userLifetime is the default of --duration: that of the server's own certificates.
const userLifetime = 365 * 24 * time.Hour

func newKubeconfigCommand() *cobra.Command {
	var flags certsFlags
	var server string
	user := pki.User{Lifetime: userLifetime}
	cmd := &cobra.Command{
		Use:   "kubeconfig NAME [--group GROUP]...",
		Short: "Print a kubeconfig for a user, with a new client certificate",
		Long: "Print a kubeconfig for a user, with a client certificate that the CA of the data\n" +
			"directory signs.\n\n" +
			"The certificate says who the user is; RBAC says what the user may do. It can't be\n" +
			"revoked: choose a short --duration, and give rights to groups or users that can be\n" +
			"taken back. The output has the private key, which byre does not keep.",
		Example: "  byre kubeconfig alice --group developers --duration 720h >alice.kubeconfig\n" +
			"  kubectl create clusterrolebinding developers --clusterrole=view --group=developers",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if user.Name != "" {
					return errors.New("name the user once: as an argument or by --user")
				}
				user.Name = args[0]
			}
			config := flags.config()
			config.Server = server
			text, err := pki.NewKubeconfig(config, user)
			if err != nil {
				return err
			}
			if slices.Contains(user.Groups, pki.SystemMasters) {
				fmt.Fprintf(cmd.ErrOrStderr(),
					"warning: the group %s may do everything, whatever RBAC says, until the certificate expires on %s\n",
					pki.SystemMasters, config.Now.Add(user.Lifetime).Format(time.DateOnly))
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	flags.addTo(cmd)
	cmd.Flags().StringVar(&user.Name, "user", "", "Name of the user, if it is no argument.")
	cmd.Flags().StringArrayVar(&user.Groups, "group", nil, "Group of the user; may be repeated.")
	cmd.Flags().StringVar(&server, "server", "", "URL of the server. If not set, that of admin.kubeconfig.")
	cmd.Flags().DurationVar(&user.Lifetime, "duration", user.Lifetime, "How long the certificate is valid.")
	return cmd
}

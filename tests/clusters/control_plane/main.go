// A Kubernetes control plane on loopback addresses: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
//
// With `--node FOLDER` it is that of one real node: the API server has the address that Pods know, the kubelet runs as
// FOLDER's kubelet.json says, and the node lifecycle controller watches it. inside.py calls it in namespaces of its own.
//
// Once all of them are ready, it prints the path of its folder, which has the administrator's kubeconfig, the address
// of etcd, the audit log and the logs. It lives until its standard input ends, as it does when the process that
// started it ends, in whatever way. Then the folder is removed.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const (
	readyWithin = 2 * time.Minute
	nodeName    = "node-1"
	nodeAddress = "10.91.0.1" // in a network namespace of its own
	auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
		"rules": [{"level": "None", "users": ["controllers", "system:apiserver", "system:node:node-1"]},
			{"level": "Metadata"}]}`
)

// Each component sets global variables, so it has a process of its own: this program with the component's name.
var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	node := ""
	if len(os.Args) == 3 && os.Args[1] == "--node" {
		node = os.Args[2]
	} else if len(os.Args) > 1 {
		component := components[os.Args[1]]()
		os.Args = os.Args[1:]
		go func() {
			<-endOfInput()
			os.Exit(0)
		}()
		os.Exit(cli.Run(component))
	}
	if err := run(node); err != nil {
		fmt.Fprintln(os.Stderr, "control plane:", err)
		os.Exit(1)
	}
}

func endOfInput() <-chan error {
	ended := make(chan error)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	return ended
}

func run(node string) error {
	folder, err := os.MkdirTemp(node, "control-plane-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	etcdAddress, _, err := freePort()
	if err != nil {
		return err
	}
	etcd, err := startEtcd(folder, etcdAddress)
	if err != nil {
		return err
	}
	defer etcd.Close()
	address, port, err := freePort()
	if err != nil {
		return err
	}
	own := []string{"--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"} // it refuses loopback addresses
	nodes := "-node-lifecycle-controller"                                          // nobody renews their leases
	grace := "50s"
	if node != "" {
		address, port = nodeAddress+":443", "443"
		own = []string{"--bind-address=0.0.0.0", "--advertise-address=" + nodeAddress,
			"--kubelet-preferred-address-types=InternalIP", "--enable-admission-plugins=NodeRestriction"}
		nodes, grace = "node-lifecycle-controller", "20s" // the kubelet renews its lease every 5 s
	}
	if err := writeFiles(folder, "https://"+address, "http://"+etcdAddress); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	server, err := start(folder, append([]string{"kube-apiserver",
		"--secure-port=" + port, "--cert-dir=" + folder,
		"--etcd-servers=http://" + etcdAddress,
		"--storage-media-type=application/json", // so that a test can date an object back
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		"--authorization-mode=Node,RBAC", "--token-auth-file=" + in("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + in("key.pem"), "--service-account-signing-key-file=" + in("key.pem"),
		"--audit-policy-file=" + in("audit-policy.json"), "--audit-log-path=" + in("audit.log"),
		"--audit-log-mode=blocking-strict"}, own...)...)
	if err != nil {
		return err
	}
	defer server.stop()
	if err := waitForServer(in("kubeconfig"), server.ended); err != nil {
		return err
	}
	manager, err := start(folder, "kube-controller-manager", "--kubeconfig="+in("controllers.kubeconfig"),
		"--controllers=*,"+nodes, "--node-monitor-grace-period="+grace,
		"--service-account-private-key-file="+in("key.pem"), "--root-ca-file="+in("apiserver.crt"),
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000",
		"--concurrent-namespace-syncs=20")
	if err != nil {
		return err
	}
	defer manager.stop()
	scheduler, err := start(folder, "kube-scheduler", "--kubeconfig="+in("controllers.kubeconfig"),
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000")
	if err != nil {
		return err
	}
	defer scheduler.stop()
	kubelet := &component{} // ended is nil: of a control plane without a kubelet, it never ends
	if node != "" {
		kubelet, err = start(folder, "kubelet", "--config="+filepath.Join(node, "kubelet.json"),
			"--kubeconfig="+in("kubelet.kubeconfig"), "--root-dir="+filepath.Join(node, "kubelet"),
			"--cert-dir="+filepath.Join(node, "pki"), "--hostname-override="+nodeName, "--node-ip="+nodeAddress)
		if err != nil {
			return err
		}
		defer kubelet.stop()
	}
	fmt.Println(folder)
	select {
	case <-endOfInput():
		return nil
	case err := <-server.ended:
		return err
	case err := <-manager.ended:
		return err
	case err := <-scheduler.ended:
		return err
	case err := <-kubelet.ended:
		return err
	}
}

func startEtcd(folder, address string) (*embed.Etcd, error) {
	config := embed.NewConfig()
	config.Dir = filepath.Join(folder, "etcd.data")
	config.LogOutputs = []string{filepath.Join(folder, "etcd.log")}
	config.UnsafeNoFsync = true // nothing is to survive
	config.ListenClientUrls = []url.URL{{Scheme: "http", Host: address}}
	config.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case <-time.After(readyWithin):
		etcd.Close()
		return nil, errors.New("etcd is not ready")
	}
}

func freePort() (address, port string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer listener.Close()
	address = listener.Addr().String()
	_, port, err = net.SplitHostPort(address)
	return address, port, err
}

// writeFiles writes what the components read, a kubeconfig for the administrator and one for the controllers.
func writeFiles(folder, server, etcd string) error {
	in := func(name string) string { return filepath.Join(folder, name) }
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	tokens := ""
	for user, name := range map[string]string{
		"admin": "kubeconfig", "controllers": "controllers.kubeconfig", "system:node:" + nodeName: "kubelet.kubeconfig",
	} {
		token, group := rand.Text(), "system:masters"
		if name == "kubelet.kubeconfig" {
			group = "system:nodes"
		}
		tokens += fmt.Sprintf("%s,%s,%s,%s\n", token, user, user, group)
		kubeconfig := api.NewConfig()
		kubeconfig.AuthInfos[user] = &api.AuthInfo{Token: token}
		kubeconfig.Clusters["control-plane"] = &api.Cluster{Server: server, CertificateAuthority: in("apiserver.crt")}
		kubeconfig.Contexts["control-plane"] = &api.Context{Cluster: "control-plane", AuthInfo: user}
		kubeconfig.CurrentContext = "control-plane"
		if err := clientcmd.WriteToFile(*kubeconfig, in(name)); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"tokens.csv": tokens, "key.pem": string(key), "audit-policy.json": auditPolicy, "etcd": etcd,
	} {
		if err := os.WriteFile(in(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

type component struct {
	command *exec.Cmd
	ended   chan error // with the end of its log
}

// start starts a component, which also ends when this process does, as its standard input ends.
func start(folder string, args ...string) (*component, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(folder, args[0]+".log")
	log, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	command := exec.Command(self, args...)
	command.Stdout, command.Stderr = log, log
	if _, err := command.StdinPipe(); err != nil {
		return nil, err
	}
	started := &component{command, make(chan error, 1)}
	if err := command.Start(); err != nil {
		return nil, err
	}
	go func() {
		err := command.Wait()
		text, _ := os.ReadFile(path)
		started.ended <- fmt.Errorf("%s ended: %v\n%s", args[0], err, text[max(0, len(text)-2000):])
		close(started.ended) // who has read that does not wait for it again
	}()
	return started, nil
}

func (c *component) stop() {
	c.command.Process.Kill()
	select {
	case <-c.ended:
	case <-time.After(readyWithin):
	}
}

// waitForServer waits until the API server has made its certificate and is ready.
func waitForServer(kubeconfig string, ended <-chan error) error {
	deadline := time.After(readyWithin)
	for {
		err := askServer(kubeconfig)
		if err == nil {
			return nil
		}
		select {
		case err := <-ended:
			return err
		case <-deadline:
			return fmt.Errorf("kube-apiserver is not ready: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func askServer(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return client.RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error()
}

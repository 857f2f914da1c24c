import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs many mqadmin commands in one JVM: one per line, arguments split by tabs; a line with EOT ends each output. */
public class AdminShell extends MQAdminStartup {
    public static void main(String[] ignored) {
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).lines().forEach(AdminShell::run);
        System.exit(0);
    }

    private static void run(String line) {
        SUB_COMMANDS.clear(); // Some commands keep a client that they have shut down.
        main0(line.split("\t", -1), null);
        System.err.flush();
        System.out.println();
        System.out.println("\u0004");
        System.out.flush();
    }
}

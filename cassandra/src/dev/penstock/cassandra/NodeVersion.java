package dev.penstock.cassandra;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.dht.Murmur3Partitioner;
import org.apache.cassandra.exceptions.ConfigurationException;
import org.apache.cassandra.utils.FBUtilities;

/**
 * Refuses to run inside a node this jar was not compiled for.
 *
 * The plugin uses package-private and private members of the node, so another release could fail in the middle of a
 * write instead of at start. The release is in the jar's manifest as Specification-Version.
 */
final class NodeVersion {
    private NodeVersion() {}

    static void check() {
        String built = NodeVersion.class.getPackage().getSpecificationVersion();
        String found = FBUtilities.getReleaseVersionString();
        if (!found.equals(built))
            throw new ConfigurationException("This penstock-cassandra.jar was compiled for Apache Cassandra " + built
                                             + ", the node is " + found
                                             + ". Next: compile the plugin against the jars of this node,"
                                             + " or start the node without it");
        if (!(DatabaseDescriptor.getPartitioner() instanceof Murmur3Partitioner))
            throw new ConfigurationException("The change log needs Murmur3Partitioner, the node uses "
                                             + DatabaseDescriptor.getPartitioner().getClass().getSimpleName());
    }
}
